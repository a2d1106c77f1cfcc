"""Claim: BCCD from scratch in 20 minutes of training on two cores reaches AP50 0.92 and AP 0.60 on the test split, and
for equal time is better than the Object Detection API's own loop at each of its checkpoints.

Three systems train the same architecture with the same batch size: `ours` with pipelines/samples/bccd.yaml, `zoo` the
Object Detection API with the hyperparameters of its model zoo and a shortened schedule, `same` the Object Detection API
with our hyperparameters, as far as its configuration supports them. They run one after the other. Time counts from the
call of the training loop, including tracing. Nothing is evaluated until training ends; then one function scores the
detections of every checkpoint in the test split, with averaged weights if the system has them.

A run that exists in the output folder is not repeated, so an interrupted benchmark can continue. Writes scores.json,
AP.svg and AP50.svg for all runs in the folder.

    python benchmarks/time_to_map.py [--output DIR] [--minutes 20] [--seeds 0,1,2] [--only ours,zoo] [--data .../bccd]
"""

import argparse
import hashlib
import json
import math
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the checkout's `detloom`

from tools.bccd_configs import CLASSES, NUM_CHECKPOINTS, our_config, peer_config  # noqa: E402
from tools.coco_scores import Score, score_files  # noqa: E402
from tools.disturbance import run_child  # noqa: E402
from tools.surroundings import NO_PEER, PEER_PYTHON, describe_machine, find_bccd, has_peer  # noqa: E402
from tools.time_to_map_report import RunScores, write_report  # noqa: E402

from detloom.schemas.reading.typed_dict import to_canonical_json  # noqa: E402

OUR_SCRIPT = ROOT / "benchmarks/tools/our_train.py"
PEER_SCRIPT = ROOT / "benchmarks/peers/odapi_train.py"
SYSTEMS = ("ours", "zoo", "same")
CALIBRATION_STEPS = 50  # measured twice, because the first steps include tracing


@dataclass(frozen=True, kw_only=True)
class Task:
    """Data about all runs.

    Attributes:
        recipe: fingerprint of our configuration and the minutes, from which the other configurations are derived.
    """

    data: Path
    examples: Path
    minutes: float
    recipe: str

    def records(self, split: str) -> str:
        return str(self.examples / f"Split-{split}/*tfrecord*")


@dataclass(frozen=True, kw_only=True)
class Run:
    """A training run with its own folder."""

    system: str
    seed: int
    folder: Path

    @property
    def config_path(self) -> Path:
        return self.folder / ("config.json" if self.system == "ours" else "pipeline.config")

    @property
    def trained_path(self) -> Path:
        return self.folder / "trained.json"

    @property
    def scores_path(self) -> Path:
        return self.folder / "scores.json"

    def command(self, what: str, *arguments: object) -> list[str]:
        script = (sys.executable, OUR_SCRIPT) if self.system == "ours" else (PEER_PYTHON, PEER_SCRIPT)
        return [str(each) for each in (*script, what, self.config_path, *arguments)]

    def checkpoints(self) -> list[tuple[float, str]]:
        """Return seconds since the start of training and path without extension, in order."""
        started = json.loads((self.folder / "run/started.json").read_text())["time"]
        folder, untrained = ("run/checkpoints", "ckpt-0") if self.system == "ours" else ("run", "ckpt-1")
        files = [path for path in (self.folder / folder).glob("ckpt-*.index") if path.stem != untrained]
        files.sort(key=lambda path: int(path.stem.removeprefix("ckpt-")))
        return [(path.stat().st_mtime - started, str(path.with_suffix(""))) for path in files]


def make_examples(task: Task) -> None:
    """The records that all systems read."""
    if (task.examples / "label_map.pbtxt").is_file():
        return
    ingest = [sys.executable, "-m", "detloom.pipelines.cli", "ingest", "--format=voc", f"--classes={','.join(CLASSES)}"]
    command = [*ingest, f"--input={task.data}", f"--output={task.examples}", "--splits=train=train,eval=val,test=test"]
    run_child(command, task.examples.with_suffix(".log"))


def train_ours(run: Run, task: Task) -> dict[str, Any]:
    config = our_config(task.data, run.seed, task.minutes)
    run.config_path.write_text(to_canonical_json(config))
    child = run_child(run.command("train", task.examples, run.folder / "run"), run.folder / "train.log")
    return {"num_steps": config.train.num_steps, "others": child.others, "unsaid": []}


def train_peer(run: Run, task: Task) -> dict[str, Any]:
    """Train as many steps as the time allows; a short training run before measures how many."""
    ours, trial = our_config(task.data, run.seed, task.minutes), replace(run, folder=run.folder / "trial")

    def train(its: Run, num_steps: int, every: int) -> tuple[float, list[str]]:
        its.folder.mkdir(exist_ok=True)
        text, unsaid = peer_config(run.system, ours, num_steps, task.examples)
        its.config_path.write_text(text)
        command = its.command("train", its.folder / "run", num_steps, every, run.seed)
        return run_child(command, its.folder / "train.log").others, unsaid

    train(trial, 2 * CALIBRATION_STEPS, CALIBRATION_STEPS)
    (first, _), (second, _) = trial.checkpoints()
    shutil.rmtree(trial.folder)
    num_steps, every = steps_within(60 * task.minutes, first, (second - first) / CALIBRATION_STEPS)
    others, unsaid = train(run, num_steps, every)
    return {"num_steps": num_steps, "others": others, "unsaid": unsaid}


def steps_within(seconds: float, first_seconds: float, step_seconds: float) -> tuple[int, int]:
    """Return the steps that fit into `seconds`, and the steps between two checkpoints.

    Args:
        first_seconds: duration of the first CALIBRATION_STEPS, including building and tracing.
    """
    num_steps = CALIBRATION_STEPS + math.floor(max(0.0, seconds - first_seconds) / step_seconds)
    unit = 100 if num_steps >= 100 * NUM_CHECKPOINTS else 10  # the peer runs 100 steps per call if possible
    every = max(unit, num_steps // NUM_CHECKPOINTS // unit * unit)
    return max(every, num_steps // every * every), every


def run_once(run: Run, task: Task) -> RunScores:
    """Train, detect and score; reuse existing results."""
    if not run.trained_path.is_file():
        shutil.rmtree(run.folder, ignore_errors=True)
        run.folder.mkdir(parents=True)
        trained = (train_ours if run.system == "ours" else train_peer)(run, task)
        run.trained_path.write_text(json.dumps({**trained, "recipe": task.recipe}))
    if not run.scores_path.is_file():
        found_path = run.folder / "found"
        seconds, paths = zip(*run.checkpoints(), strict=True)
        run_child(run.command("detect", task.records("test"), found_path, *paths), run.folder / "detect.log")
        found = score_files(found_path, seconds, task.records("test"), CLASSES)
        run.scores_path.write_text(json.dumps([asdict(each) for each in found], indent=1))
    return read_run(run)


def read_run(run: Run) -> RunScores:
    """Read the result of a finished run."""
    trained = json.loads(run.trained_path.read_text())
    del trained["recipe"]
    scores = tuple(Score(**each) for each in json.loads(run.scores_path.read_text()))
    return RunScores(system=run.system, seed=run.seed, scores=scores, **trained)


def run_all(task: Task, systems: Sequence[str], seeds: Sequence[int], output: Path) -> list[RunScores]:
    """Run seed by seed, so that an early stop leaves a fair share of each system.

    Returns:
        All runs in the folder, including those of earlier calls.
    """
    check_runs(task, output)
    trained = systems if has_peer() else [system for system in systems if system == "ours"]
    if missing := [system for system in systems if system not in trained]:
        print(f"{', '.join(missing)}: {NO_PEER}")
    for seed in seeds:
        for system in trained:
            run = Run(system=system, seed=seed, folder=output / f"{system}-{seed}")
            result = run_once(run, task)
            last = result.scores[-1]
            shown = f"AP {last.AP:.3f}, AP50 {last.AP50:.3f} after {last.seconds:.0f} s"
            print(f"  {run.folder.name}: {shown}; others used {result.others:.0%}", file=sys.stderr, flush=True)
    return [read_run(run) for run in find_runs(output) if run.scores_path.is_file()]


def find_runs(output: Path) -> list[Run]:
    """Return the runs by system and seed."""
    folders = [(folder, *folder.name.rpartition("-")[::2]) for folder in output.glob("*-*")]
    runs = [
        Run(system=name, seed=int(seed), folder=folder)
        for folder, name, seed in folders
        if name in SYSTEMS and seed.isdecimal()
    ]
    return sorted(runs, key=lambda run: (SYSTEMS.index(run.system), run.seed))


def check_runs(task: Task, output: Path) -> None:
    """Exit before training if a new run could not be compared with the existing ones."""
    for run in find_runs(output):
        if run.trained_path.is_file() and json.loads(run.trained_path.read_text()).get("recipe") != task.recipe:
            sys.exit(f"{run.folder}: got a run with other minutes or another recipe; choose another --output")


def fingerprint(data: Path, minutes: float) -> str:
    """Return a fingerprint of the recipe and the minutes."""
    return hashlib.sha256(f"{minutes} {to_canonical_json(our_config(data, 0, minutes))}".encode()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path.home() / ".cache/detloom/time_to_map")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seeds", type=lambda text: [int(each) for each in text.split(",")], default=[0, 1, 2])
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(SYSTEMS), metavar=",".join(SYSTEMS))
    args = parser.parse_args()
    if unknown := set(args.only) - set(SYSTEMS):
        parser.error(f"--only: got {', '.join(sorted(unknown))}, allowed: {', '.join(SYSTEMS)}")
    output = args.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    data = find_bccd(args.data)
    recipe = fingerprint(data, args.minutes)
    task = Task(data=data, examples=output / "examples", minutes=args.minutes, recipe=recipe)
    os.environ["PYTHONPATH"] = str(ROOT)  # for child processes
    make_examples(task)
    runs = run_all(task, args.only, args.seeds, output)
    write_report(runs, output, {"minutes": args.minutes, **describe_machine()})


if __name__ == "__main__":
    main()
