"""Claim: on BCCD, a candidate that was trained longer than its baseline is blessed, one that was trained shorter is
refused, and an identical model shows no significant difference.

Reads a finished training run of BCCD with several checkpoints, as written by time_to_map.py, and its examples. Three of
the checkpoints are exported, with averaged weights if the run evaluates those, and DetectionEvaluator's `evaluate`
compares them on the test split with the default gates: AP at least the baseline's. Prints a table, writes
decisions.json, and keeps the report of each comparison in a separate folder.

    python benchmarks/decisions.py --run .../ours-0/run --examples .../examples [--steps 310,930,1550] [--output DIR]
"""

import argparse
import json
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tools.surroundings import describe_machine

if TYPE_CHECKING:
    from detloom.components.evaluator.evaluation_result import EvaluationResult

SHARES = (0.25, 0.6, 1.0)  # of the last step: shorter, baseline, longer
CHECKPOINTS = "checkpoints"  # in a run's folder
_INDEX = re.compile(r"ckpt-(\d+)\.index")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A candidate, a baseline, and the claim; `difference` None accepts any, because the split has few images."""

    name: str
    candidate_step: int
    baseline_step: int
    blessed: bool
    difference: str | None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The decision; `low` and `high` are the ends of the interval of the change of AP, or None if unknown."""

    AP: float
    baseline_AP: float
    change: float | None
    low: float | None
    high: float | None
    difference: str | None
    blessed: bool
    reason: str


def find_steps(run_dir: Path) -> list[int]:
    """Return the steps of the checkpoints in ascending order, without step 0."""
    matches = (_INDEX.fullmatch(path.name) for path in (run_dir / CHECKPOINTS).glob("ckpt-*.index"))
    return sorted(step for match in matches if match and (step := int(match.group(1))) > 0)


def choose_steps(there: Sequence[int], asked: Sequence[int] | None) -> tuple[int, int, int]:
    """Return the steps of shorter, baseline and longer: as asked, or else the ones closest to SHARES of the last step.

    Raises:
        ValueError: they are not three ascending steps of existing checkpoints.
    """
    steps = list(asked or ())
    if not steps and there:
        steps = [min(there, key=lambda step: abs(step - share * there[-1])) for share in SHARES]
    if len(steps) != 3 or sorted(set(steps)) != steps or set(steps) - set(there):
        known = ", ".join(map(str, there)) or "none"
        raise ValueError(f"steps: got {steps}, allowed: three ascending steps of existing checkpoints ({known}).")
    shorter, baseline, longer = steps
    return shorter, baseline, longer


def make_pairs(shorter: int, baseline: int, longer: int) -> list[Pair]:
    claims = (("longer", longer, True, None), ("shorter", shorter, False, None), ("same", baseline, True, "none"))
    return [
        Pair(name=name, candidate_step=step, baseline_step=baseline, blessed=blessed, difference=difference)
        for name, step, blessed, difference in claims
    ]


def export_steps(run_dir: Path, steps: Sequence[int], models_dir: Path) -> dict[int, Path]:
    """Export a SavedModel of each step; replace the SavedModels of an earlier call."""
    from detloom.schemas.contracts.label_map import LABEL_MAP_FILE, read_label_map
    from detloom.schemas.model.config import TrainEvalConfig
    from detloom.schemas.reading.typed_dict import from_json
    from detloom.trainer_module.detectors.families import build_detector
    from detloom.trainer_module.export.saved_model import export_saved_model
    from detloom.trainer_module.run_state.run_folder import CONFIG_FILE
    from detloom.trainer_module.training.follow_checkpoints import load_checkpoint

    config = from_json(TrainEvalConfig, (run_dir / CONFIG_FILE).read_text(encoding="utf-8"))
    detector = build_detector(config.model, read_label_map(run_dir / LABEL_MAP_FILE))
    models = {}
    for step in steps:
        path = run_dir / CHECKPOINTS / f"ckpt-{step}"
        load_checkpoint(detector, path, use_averages=config.eval.use_moving_averages)
        models[step] = models_dir / f"step-{step}"
        shutil.rmtree(models[step], ignore_errors=True)
        export_saved_model(detector, config, models[step])
        print(f"  step {step} exported", file=sys.stderr, flush=True)
    return models


def decide_pair(pair: Pair, models: Mapping[int, Path], examples: Path, split: str, output: Path) -> Outcome:
    """Evaluate a pair and write the report into `output`."""
    import apache_beam as beam

    from detloom.components.evaluator.evaluate_exported import EvaluationInputs, evaluate
    from detloom.components.evaluator.params import EvaluatorParams

    inputs = EvaluationInputs(
        candidate_dir=str(models[pair.candidate_step]),
        baseline_dir=str(models[pair.baseline_step]),
        examples_uris=[str(examples)],
        shard_patterns=[str(examples / f"Split-{split}/*")],
    )
    output.mkdir(parents=True, exist_ok=True)
    params = EvaluatorParams(split=split)
    return describe(evaluate(inputs, params, lambda: beam.Pipeline(runner="DirectRunner"), str(output)))


def describe(evaluation: "EvaluationResult") -> Outcome:
    """Summarize an evaluation whose baseline was compared."""
    before, change, decision = evaluation.baseline, evaluation.comparison.ap_change, evaluation.decision
    if before is None or change is None:
        raise RuntimeError(f"the baseline was not compared: {decision.baseline_problem}")
    return Outcome(
        AP=evaluation.candidate.coco.AP,
        baseline_AP=before.coco.AP,
        change=change.value,
        low=change.low,
        high=change.high,
        difference=decision.difference,
        blessed=decision.blessed,
        reason=decision.reason,
    )


def is_as_claimed(pair: Pair, outcome: Outcome) -> bool:
    return outcome.blessed == pair.blessed and pair.difference in (None, outcome.difference)


def print_table(outcomes: Sequence[tuple[Pair, Outcome]]) -> None:
    print(f"{'candidate':10}{'steps':>14}{'AP':>8}{'before':>8}{'change':>8}  {'interval':18}{'difference':12}decision")
    for pair, found in outcomes:
        steps = f"{pair.candidate_step} / {pair.baseline_step}"
        low, high, change = (format_signed(value) for value in (found.low, found.high, found.change))
        decision = (
            f"{'blessed' if found.blessed else 'refused'}{'' if is_as_claimed(pair, found) else ' NOT AS CLAIMED'}"
        )
        print(
            f"{pair.name:10}{steps:>14}{found.AP:8.3f}{found.baseline_AP:8.3f}{change:>8}  {f'{low} to {high}':18}"
            f"{found.difference or '-':12}{decision}"
        )
    for pair, found in outcomes:
        print(f"{pair.name}: {found.reason}")


def format_signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="folder of a finished training run")
    parser.add_argument("--examples", type=Path, required=True, help="folder of its splits")
    parser.add_argument("--split", default="test")
    parser.add_argument(
        "--steps", type=lambda text: [int(each) for each in text.split(",")], metavar="SHORTER,BASELINE,LONGER"
    )
    parser.add_argument("--output", type=Path, default=Path.home() / ".cache/detloom/decisions")
    args = parser.parse_args()
    run_dir, examples, output = (path.resolve() for path in (args.run, args.examples, args.output))
    try:
        steps = choose_steps(find_steps(run_dir), args.steps)
    except ValueError as error:
        parser.error(f"{run_dir}: {error}")
    models = export_steps(run_dir, steps, output / "models")
    outcomes, rows = [], []
    for pair in make_pairs(*steps):
        started = time.monotonic()
        outcome = decide_pair(pair, models, examples, args.split, output / pair.name)
        seconds = time.monotonic() - started
        print(f"  {pair.name}: {seconds:.0f} s", file=sys.stderr, flush=True)
        outcomes.append((pair, outcome))
        rows.append({"pair": asdict(pair), **asdict(outcome), "as_claimed": is_as_claimed(pair, outcome)})
    print_table(outcomes)
    settings = {"run": str(run_dir), "examples": str(examples), "split": args.split, **describe_machine()}
    text = json.dumps({"settings": settings, "outcomes": rows}, indent=2)
    (output / "decisions.json").write_text(text + "\n", encoding="utf-8")
    print(f"reports: {', '.join(str(output / pair.name / 'report.html') for pair, _ in outcomes)}")
    sys.exit(0 if all(row["as_claimed"] for row in rows) else 1)


if __name__ == "__main__":
    main()
