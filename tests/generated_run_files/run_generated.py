"""Run generated run files and record their outcomes as JSON lines.

`python run_generated.py --first 0 --count 20 --log outcomes.jsonl` runs the files of 20 seeds, and with `--pairs` a
share of the files that cover all pairs of options.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import yaml

sys.path.append(str(Path(__file__).parent))  # tests are not a package

from bases import DETECTORS, base_of, write_tiny_data
from pairwise import cover_all_pairs
from run_file_generator import Generator, Plain

from detloom.pipelines.local.run_local import run_locally
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.read_run_file import read_run_file
from detloom.trainer_module.runtime.preemption import Preempted

Result = Literal["decision", "refused", "failed"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of one generated run file.

    Attributes:
        name: the seed, or the number of a file that covers pairs.
        result: "decision", "refused" (before training), or "failed", which is a defect.
        settings: the run file.
    """

    name: str
    result: Result
    error: str
    seconds: float
    settings: Plain


@dataclass(frozen=True)
class Inputs:
    """What all run files read: the tiny data set, and a checkpoint for each base's name."""

    data: Path
    checkpoints: Mapping[str, str]


def write_inputs(folder: Path) -> Inputs:
    """Write the tiny data set, and train each base for a step."""
    data = write_tiny_data(folder / "data")
    checkpoints = {}
    for detector in DETECTORS:
        workspace = folder / detector
        workspace.mkdir()
        outcome = run_plain(detector, base_of(detector, data), workspace)
        assert outcome.result == "decision", outcome.error
        indexes = sorted(workspace.rglob("ckpt-*.index"))
        checkpoints[detector] = str(indexes[-1].with_suffix(""))
    return Inputs(data, checkpoints)


def generated(seed: int, inputs: Inputs) -> Plain:
    """Return the tree of a seed."""
    detector = list(DETECTORS)[seed % len(DETECTORS)]
    base = base_of(detector, inputs.data, by_ratio=seed // len(DETECTORS) % 2 == 1)
    generator = Generator(seed, inputs.checkpoints[detector])
    plain, _ = generator.follow_advice(generator.generate(base))
    return plain


def run_plain(name: str, plain: Plain, folder: Path) -> Outcome:
    """Run the whole DAG of a run file in an empty folder."""
    started = time.monotonic()
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(plain))
    result: Result = "decision"
    error = ""
    try:
        summary = run_locally(read_run_file(path, folder / "workspace"))
        assert "BLESSED" in summary, summary
    except InputError as problem:
        error, result = str(problem), "failed" if any(folder.rglob("ckpt-*.index")) else "refused"
    except Preempted:  # this process is asked to stop
        raise
    except Exception:
        error, result = traceback.format_exc(), "failed"
    return Outcome(
        name=name,
        result=result,
        error=error,
        seconds=round(time.monotonic() - started, 1),
        settings=plain,
    )


def write_outcome(log: Path, outcome: Outcome) -> None:
    with log.open("a") as file:
        file.write(json.dumps(asdict(outcome)) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", action="store_true")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--log", type=Path, default=Path("outcomes.jsonl"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        inputs = write_inputs(Path(name))
        numbers = range(options.first, options.first + options.count)
        if options.pairs:
            files = cover_all_pairs(lambda seed: generated(seed, inputs)).files[numbers.start : numbers.stop]
        else:
            files = (generated(seed, inputs) for seed in numbers)
        for number, plain in zip(numbers, files, strict=False):
            folder = Path(name) / f"run{number}"
            folder.mkdir()
            outcome = run_plain(f"{'pairs' if options.pairs else 'seed'} {number}", plain, folder)
            write_outcome(options.log, outcome)
            print(outcome.name, outcome.result, outcome.seconds, outcome.error[-300:], flush=True)
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
