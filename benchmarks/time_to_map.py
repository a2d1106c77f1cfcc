"""Claim: BCCD from scratch in 20 minutes of training on two cores reaches AP50 0.92 and AP 0.60 on the test split, and
for equal time is better than the Object Detection API's own loop.

`ours` is pipelines/samples/bccd.yaml, `peer` the Object Detection API with the hyperparameters of its model zoo for the
same architecture and batch size. Time counts from the call of the training loop. After the training, one function
scores the checkpoints on the test split. Prints a table, writes scores.json.

    python benchmarks/time_to_map.py [--output DIR] [--minutes 20] [--seeds 0 1 2] [--data .../bccd]
"""

import argparse
import json
import math
import os
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the checkout's `detloom`

from tools.bccd_configs import CLASSES, NUM_CHECKPOINTS, our_config, peer_config  # noqa: E402
from tools.coco_scores import Score, score_files  # noqa: E402
from tools.disturbance import run_child  # noqa: E402
from tools.surroundings import NO_PEER, PEER_PYTHON, describe_machine, find_bccd, has_peer  # noqa: E402

from detloom.schemas.reading.typed_dict import to_canonical_json  # noqa: E402

SCRIPTS = {
    "ours": (sys.executable, ROOT / "benchmarks/tools/our_train.py"),
    "peer": (PEER_PYTHON, ROOT / "benchmarks/peers/odapi_train.py"),
}
CALIBRATION_STEPS = 50  # measured twice, because the first steps include tracing


def make_examples(data: Path, examples: Path) -> None:
    """Write the records that both systems read."""
    ingest = [sys.executable, "-m", "detloom.pipelines.cli", "ingest", "--format=voc", f"--classes={','.join(CLASSES)}"]
    command = [*ingest, f"--input={data}", f"--output={examples}", "--splits=train=train,eval=val,test=test"]
    run_child(command, examples.with_suffix(".log"))


def train_ours(folder: Path, data: Path, examples: Path, seed: int, minutes: float) -> Path:
    """Train, and return the path of the configuration."""
    config = folder / "config.json"
    config.write_text(to_canonical_json(our_config(data, seed, minutes)))
    run("ours", "train", config, examples, folder / "run")
    return config


def train_peer(folder: Path, data: Path, examples: Path, seed: int, minutes: float) -> Path:
    """Train as many steps as the time allows; a short training run before measures how many."""
    ours, config = our_config(data, seed, minutes), folder / "pipeline.config"

    def train(name: str, num_steps: int, every: int) -> None:
        config.write_text(peer_config(ours, num_steps, examples))
        run("peer", "train", config, folder / name, num_steps, every, seed)

    train("trial", 2 * CALIBRATION_STEPS, CALIBRATION_STEPS)
    (first, _), (second, _) = checkpoints("peer", folder / "trial")
    train("run", *steps_within(60 * minutes, first, (second - first) / CALIBRATION_STEPS))
    return config


def steps_within(seconds: float, first_seconds: float, step_seconds: float) -> tuple[int, int]:
    """Return the steps that fit into `seconds`, and the steps between two checkpoints.

    Args:
        first_seconds: duration of the first CALIBRATION_STEPS, including building and tracing.
    """
    num_steps = CALIBRATION_STEPS + math.floor(max(0.0, seconds - first_seconds) / step_seconds)
    unit = 100 if num_steps >= 100 * NUM_CHECKPOINTS else 10  # the peer runs 100 steps per call if possible
    every = max(unit, num_steps // NUM_CHECKPOINTS // unit * unit)
    return max(every, num_steps // every * every), every


def checkpoints(system: str, folder: Path) -> list[tuple[float, str]]:
    """Return seconds since the start of training and path without extension, in order."""
    started = json.loads((folder / "started.json").read_text())["time"]
    files = (folder / "checkpoints" if system == "ours" else folder).glob("ckpt-*.index")
    untrained = "ckpt-0" if system == "ours" else "ckpt-1"
    trained = [path for path in files if path.stem != untrained]
    trained.sort(key=lambda path: int(path.stem.removeprefix("ckpt-")))
    return [(path.stat().st_mtime - started, str(path.with_suffix(""))) for path in trained]


def run(system: str, what: str, config: Path, *arguments: object) -> None:
    command = [str(word) for word in (*SCRIPTS[system], what, config, *arguments)]
    run_child(command, config.parent / f"{what}.log")


def run_once(system: str, folder: Path, data: Path, examples: Path, seed: int, minutes: float) -> list[Score]:
    """Train, detect and score."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    train = train_ours if system == "ours" else train_peer
    config = train(folder, data, examples, seed, minutes)
    records = str(examples / "Split-test/*tfrecord*")
    seconds, paths = zip(*checkpoints(system, folder / "run"), strict=True)
    run(system, "detect", config, records, folder / "found", *paths)
    return list(score_files(folder / "found", seconds, records, CLASSES))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path.home() / ".cache/detloom/time_to_map")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    args = parser.parse_args()
    data, output = find_bccd(args.data), args.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONPATH"] = str(ROOT)  # for child processes
    make_examples(data, output / "examples")
    systems = ["ours", "peer"] if has_peer() else ["ours"]
    if not has_peer():
        print(f"peer: {NO_PEER}")
    results = []
    print(f"{'system':8}{'seed':>5}{'step':>7}{'seconds':>9}{'AP':>8}{'AP50':>8}")
    for seed in args.seeds:
        for system in systems:
            scores = run_once(system, output / f"{system}-{seed}", data, output / "examples", seed, args.minutes)
            results.append({"system": system, "seed": seed, "scores": [asdict(score) for score in scores]})
            for score in scores:
                print(
                    f"{system:8}{seed:5}{score.step:7}{score.seconds:9.0f}{score.AP:8.3f}{score.AP50:8.3f}", flush=True
                )
    report = {"minutes": args.minutes, **describe_machine(), "runs": results}
    (output / "scores.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
