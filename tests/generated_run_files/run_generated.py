"""Run generated run files and record their outcomes as JSON lines.

`python run_generated.py --first 0 --count 20 --log outcomes.jsonl` runs the files of 20 seeds, and with `--files pairs`
a share of the files that cover, together with the random files, all pairs of options. The same command goes on after an
interruption.
"""

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Literal

import yaml

sys.path.append(str(Path(__file__).parent))  # tests are not a package

from bases import OF_BOXES, OF_SHAPES, base_of, write_tiny_data
from pairwise import Cover, cover_all_pairs
from run_file_generator import Generator, Plain

from detloom.pipelines.local.run_local import run_locally
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.reading.overrides import Located
from detloom.schemas.run_file.read_run_file import build_run, read_run_file
from detloom.trainer_module.detectors.families import build_detector
from detloom.trainer_module.runtime.preemption import Preempted
from detloom.trainer_module.weights.own_checkpoint import write_weights

# On a CPU, XLA optimizes a large network's step for minutes, and a file runs few steps. Outcomes stay the same.
_XLA_FLAGS = "--xla_backend_optimization_level=0"
NUM_PROCESSES = 2
NUM_SEEDS, NUM_SEEDS_WITH_SHAPES = 300, 60  # of the files that are run in the proofs
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
    """The files that all run files read: the tiny data set, and a checkpoint for each base's name."""

    data: Path
    checkpoints: Mapping[str, str]


def write_inputs(folder: Path) -> Inputs:
    """Write the tiny data set, and random weights of each base."""
    data = write_tiny_data(folder / "data")
    categories = json.loads((data / "annotations/train.json").read_text())["categories"]
    label_map = LabelMap(tuple((category["id"], category["name"]) for category in categories))
    checkpoints = {}
    for name in (*OF_BOXES, *OF_SHAPES):
        config = build_run(Located(base_of(name, data), str)).config
        weights = write_weights(build_detector(config.model, label_map), config, folder / name)
        checkpoints[name] = str(weights)
    return Inputs(data, checkpoints)


def generated(seed: int, inputs: Inputs, detectors: Collection[str] = OF_BOXES) -> Plain:
    """Return the tree of a seed, with one of these detectors."""
    detector = list(detectors)[seed % len(detectors)]
    base = base_of(detector, inputs.data, by_ratio=seed // len(detectors) % 2 == 1)
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
        if "became non-finite" in error and not _normalizes(plain):
            result = "refused"  # without batch norm, random settings can make gradients explode
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


def _normalizes(plain: Plain) -> bool:
    """Return whether batch norm is trained; frozen, it does not normalize the outputs of random weights."""
    text = json.dumps(plain)
    return '"batch_norm": {' in text and '"batch_norm_trainable": false' not in text


def run_all(files: Iterable[tuple[str, Plain]], log: Path, num_processes: int = NUM_PROCESSES) -> Iterator[Outcome]:
    """Run files with their names, each in a process of its own; yield the outcomes as they come.

    Files whose names are in the log are not run again; an incomplete last line, of a killed process, is dropped.
    """
    known = {outcome.name: outcome for outcome in read_outcomes(log)}
    log.write_text("".join(_format(outcome) for outcome in known.values()))
    files = list(files)
    yield from (known[name] for name, _ in files if name in known)
    tasks = [(name, plain) for name, plain in files if name not in known]
    with ThreadPool(num_processes) as pool:
        for outcome in pool.imap_unordered(lambda task: run_in_process(*task), tasks):
            with log.open("a") as file:
                file.write(_format(outcome))
            yield outcome


def run_in_process(name: str, plain: Plain) -> Outcome:
    """Run a file in a new process, which gives all its memory back; its end by a signal is an outcome, too."""
    started = time.monotonic()
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_outcome, args=(name, plain, sender))
    process.start()
    sender.close()
    try:
        outcome = typing.cast(Outcome, receiver.recv())
    except EOFError:
        process.join()
        error, seconds = f"The process ended with exit code {process.exitcode}.", round(time.monotonic() - started, 1)
        outcome = Outcome(name=name, result="failed", error=error, seconds=seconds, settings=plain)
    except BaseException:  # the time limit of a test
        process.kill()
        raise
    finally:
        process.join()
    return outcome


def _send_outcome(name: str, plain: Plain, sender: Connection) -> None:
    os.environ.setdefault("XLA_FLAGS", _XLA_FLAGS)
    with tempfile.TemporaryDirectory() as folder:
        sender.send(run_plain(name, plain, Path(folder)))


def _format(outcome: Outcome) -> str:
    return json.dumps(asdict(outcome)) + "\n"


def read_outcomes(log: Path) -> list[Outcome]:
    """Return the outcomes in the complete lines of a log."""
    lines = log.read_text().splitlines(keepends=True) if log.is_file() else []
    return [Outcome(**json.loads(line)) for line in lines if line.endswith("\n")]


def random_files(seeds: range, inputs: Inputs) -> Iterator[tuple[str, Plain]]:
    """Yield the files of seeds with their names."""
    yield from ((f"seed {seed}", generated(seed, inputs)) for seed in seeds)


def files_with_shapes(seeds: range, inputs: Inputs) -> Iterator[tuple[str, Plain]]:
    """Yield the files of seeds with their names, of detectors that learn masks or keypoints."""
    yield from ((f"shapes {seed}", generated(seed, inputs, OF_SHAPES)) for seed in seeds)


def all_random_files(inputs: Inputs) -> Iterator[tuple[str, Plain]]:
    """Yield the random files of the proofs with their names."""
    yield from random_files(range(NUM_SEEDS), inputs)
    yield from files_with_shapes(range(NUM_SEEDS_WITH_SHAPES), inputs)


def cover_besides_random_files(inputs: Inputs) -> Cover:
    """Return files with the pairs of options that no random file has."""
    random = (plain for _, plain in all_random_files(inputs))
    return cover_all_pairs(lambda seed: generated(seed, inputs), random)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--files",
        choices=("random", "shapes", "pairs"),
        default="random",
        help="of seeds, of seeds for detectors with masks or keypoints, or for further pairs of options",
    )
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--log", type=Path, default=Path("outcomes.jsonl"))
    options = parser.parse_args()
    numbers = range(options.first, options.first + options.count)
    with tempfile.TemporaryDirectory() as name:
        inputs = write_inputs(Path(name))
        if options.files == "pairs":
            cover = cover_besides_random_files(inputs).files
            files = [(f"pairs {number}", plain) for number, plain in enumerate(cover)][numbers.start : numbers.stop]
        else:
            files = list((random_files if options.files == "random" else files_with_shapes)(numbers, inputs))
        for outcome in run_all(files, options.log):
            print(outcome.name, outcome.result, outcome.seconds, outcome.error[-300:], flush=True)


if __name__ == "__main__":
    main()
