"""Run generated run files and record their outcomes as JSON lines.

`python run_generated.py --fast --first 0 --count 20 --log outcomes.jsonl` trains, exports and evaluates without a DAG;
without `--fast`, the whole DAG runs.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import yaml

sys.path.append(str(Path(__file__).parent))  # tests are not a package

from bases import DETECTORS, base_of, write_tiny_data
from run_file_generator import Generator, Plain

from detloom.pipelines.commands.config_check import diff_configs
from detloom.schemas.errors import InputError
from detloom.schemas.reading.typed_dict import to_canonical_json
from detloom.schemas.run_file.read_run_file import read_run_file
from detloom.schemas.run_file.run_file import RunFile
from detloom.trainer_module.runtime.preemption import Preempted

Result = Literal["decision", "refused", "diverged", "failed"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of one generated run file.

    Attributes:
        result: "decision", "refused" (before training), "diverged" (the loss was not finite, as `train.nonfinite`
            says), or "failed", which is a defect.
        overrides: the differences from the base, as `key=value`.
    """

    seed: int
    detector: str
    mode: str
    result: Result
    error: str
    seconds: float
    overrides: tuple[str, ...]


def generated(seed: int, data: Path) -> tuple[str, Plain, tuple[str, ...]]:
    """Return the base's name, the tree of a seed, and its differences from the base."""
    detector = list(DETECTORS)[seed % len(DETECTORS)]
    base = base_of(detector, data, by_ratio=seed // len(DETECTORS) % 2 == 1)
    generator = Generator(seed)
    plain, _ = generator.follow_advice(generator.generate(base))
    return detector, plain, tuple(f"{key}={value}" for key, _, value in diff_configs(base, plain))


def run_one(seed: int, data: Path, folder: Path, *, examples: Path | None = None) -> Outcome:
    """Run the file of a seed in an empty folder.

    Args:
        examples: ingested examples, to train, export and evaluate on them without a DAG; None runs the whole DAG.
    """
    started = time.monotonic()
    detector, plain, overrides = generated(seed, data)
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(plain))
    result: Result
    error = ""
    try:
        run = read_run_file(path, folder / "workspace")
        if examples is None:
            _run_dag(run)
        else:
            _train_and_export(run, examples, folder)
        result = "decision"
    except InputError as problem:
        error = str(problem)
        began = any(folder.rglob("checkpoints/*.index")) or any(folder.rglob("ckpt-*.index"))
        result = "failed" if began else "refused"
        if began and "nonfinite" in error:
            result = "diverged"
    except Preempted:  # this process is asked to stop
        raise
    except Exception:
        error, result = traceback.format_exc(), "failed"
    return Outcome(
        seed=seed,
        detector=detector,
        mode="dag" if examples is None else "fast",
        result=result,
        error=error,
        seconds=round(time.monotonic() - started, 1),
        overrides=overrides,
    )


def _run_dag(run: RunFile) -> None:
    from detloom.pipelines.local.run_local import run_locally

    summary = run_locally(run)
    assert "BLESSED" in summary, summary


def _train_and_export(run: RunFile, examples: Path, folder: Path) -> None:
    """Train, evaluate and export with the function that TFX's Trainer calls, and load the result."""
    import tensorflow as tf

    from detloom.trainer_module import tfx_run

    model_run_dir = folder / "model_run" / "1"
    model_run_dir.mkdir(parents=True)
    serving_dir = folder / "model" / "1" / "Format-Serving"
    fn_args = SimpleNamespace(
        custom_config={
            tfx_run.CONFIG_KEY: to_canonical_json(run.config),
            tfx_run.STRATEGY_KEY: to_canonical_json(run.trainer.strategy),
            tfx_run.EXPORT_KEY: to_canonical_json(run.export),
        },
        train_files=[str(examples / "Split-train" / "*")],
        eval_files=[str(examples / "Split-eval" / "*")],
        model_run_dir=str(model_run_dir),
        serving_model_dir=str(serving_dir),
        hyperparameters=None,
        base_model=None,
    )
    tfx_run.run(fn_args)
    tf.saved_model.load(str(serving_dir))


def ingest_tiny_data(data: Path, output: Path) -> Path:
    """Write the examples of the tiny data set once."""
    from click.testing import CliRunner

    from detloom.pipelines.commands.ingest import ingest

    splits = [f"--split={name}=annotations/{name}.json" for name in ("train", "eval", "test")]
    options = ["--input", str(data), "--output", str(output), "--format", "coco", "--max-reject-fraction", "1"]
    result = CliRunner().invoke(ingest, [*options, *splits], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return output


def write_outcome(log: Path, outcome: Outcome) -> None:
    with log.open("a") as file:
        file.write(json.dumps(asdict(outcome)) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--log", type=Path, default=Path("outcomes.jsonl"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        data = write_tiny_data(Path(name) / "data")
        examples = ingest_tiny_data(data, Path(name) / "examples") if options.fast else None
        for seed in range(options.first, options.first + options.count):
            folder = Path(name) / f"run{seed}"
            folder.mkdir()
            outcome = run_one(seed, data, folder, examples=examples)
            write_outcome(options.log, outcome)
            print(seed, outcome.detector, outcome.result, outcome.seconds, outcome.error[-300:], flush=True)
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
