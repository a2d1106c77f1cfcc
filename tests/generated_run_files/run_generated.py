"""Run generated run files, each in a process of its own."""

import json
import multiprocessing
import os
import sys
import tempfile
import traceback
import typing
from collections.abc import Collection
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import yaml

sys.path.append(str(Path(__file__).parent))  # tests are not a package

from bases import OF_BOXES, base_of
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
Result = Literal["decision", "refused", "failed"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of one generated run file.

    Attributes:
        name: how to repeat it.
        result: "decision", "refused" (before training), or "failed", which is a defect.
        settings: the run file.
    """

    name: str
    result: Result
    error: str
    settings: Plain


def generated(seed: int, data: Path, folder: Path, detectors: Collection[str] = OF_BOXES) -> Plain:
    """Return the tree of a seed, with one of these detectors; write random weights of the base to the folder."""
    detector = list(detectors)[seed % len(detectors)]
    base = base_of(detector, data, by_ratio=seed // len(detectors) % 2 == 1)
    config = build_run(Located(base, str)).config
    categories = json.loads((data / "annotations/train.json").read_text())["categories"]
    label_map = LabelMap(tuple((category["id"], category["name"]) for category in categories))
    weights = write_weights(build_detector(config.model, label_map), config, folder / detector)
    return Generator(seed, str(weights)).generate(base)


def run_plain(name: str, plain: Plain, folder: Path) -> Outcome:
    """Run the whole DAG of a run file in an empty folder."""
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
        settings=plain,
    )


def _normalizes(plain: Plain) -> bool:
    """Return whether batch norm is trained; frozen, it does not normalize the outputs of random weights."""
    text = json.dumps(plain)
    return '"batch_norm": {' in text and '"batch_norm_trainable": false' not in text


def run_in_process(name: str, plain: Plain) -> Outcome:
    """Run a file in a new process, which gives all its memory back; its end by a signal is an outcome, too."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_outcome, args=(name, plain, sender))
    process.start()
    sender.close()
    try:
        outcome = typing.cast(Outcome, receiver.recv())
    except EOFError:
        process.join()
        error = f"The process ended with exit code {process.exitcode}."
        outcome = Outcome(name=name, result="failed", error=error, settings=plain)
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
