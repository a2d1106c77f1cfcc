"""Log a training run to `train_log.jsonl`, to TensorBoard event files, and as images."""

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from detloom.schemas.contracts.arrays import Uint8Array
from detloom.schemas.reading.replace_when_done import replace_when_done
from detloom.trainer_module.evaluation.split_evaluator import Evaluation
from detloom.trainer_module.files.strict_json import to_strict_json
from detloom.trainer_module.files.tensorboard_file import EventFile

LOG_FILE = "train_log.jsonl"  # one line per host call, evaluation and event
TENSORBOARD_DIR = "tensorboard"
IMAGES_DIR = "images"  # the newest image of each name as PNG; TensorBoard's files hold the older ones
_PNG_LEVEL = 1  # Pillow's default takes three times as long for a fifth less


class TrainingLog(contextlib.AbstractContextManager["TrainingLog"]):
    """Writes every entry at once, so that a killed run loses at most the line being written.

    A line of `train_log.jsonl` is a JSON object with `kind` ("train", "eval" or "event"), `step`, `time` (seconds since
    1970) and numbers by name; null replaces NaN and infinity. Each step appears once: lines about steps after
    `first_step` from an earlier attempt are removed, and TensorBoard is told to discard them.
    """

    def __init__(self, out_dir: Path, *, first_step: int) -> None:
        """Open the log for steps after `first_step`."""
        self._out_dir = out_dir
        out_dir.mkdir(parents=True, exist_ok=True)
        self._path = out_dir / LOG_FILE
        forget_lines_after(self._path, first_step)
        self._lines = self._path.open("a", encoding="utf-8")
        self._events = EventFile(out_dir / TENSORBOARD_DIR)
        self._events.restart(first_step)
        self._events.flush()

    def __exit__(self, *error: object) -> None:
        self.close()

    def forget_after(self, step: int) -> None:
        """Remove entries of steps after `step`, because training goes back to it."""
        self._lines.close()
        forget_lines_after(self._path, step)
        self._lines = self._path.open("a", encoding="utf-8")
        self._events.restart(step)
        self._events.flush()

    def steps(self, step: int, numbers: Mapping[str, float]) -> None:
        """Log means over the steps of a host call that ended with `step`."""
        self._numbers("train", step, numbers, numbers)

    def evaluation(self, step: int, evaluation: Evaluation) -> None:
        """Log all numbers, per class as well. TensorBoard gets no -1, which only means that nothing was measured."""
        numbers = {**evaluation.numbers(), "num_images": evaluation.num_images, "seconds": evaluation.seconds}
        measured = {name: value for name, value in evaluation.numbers().items() if evaluation.explain(name) is None}
        self._numbers("eval", step, numbers, measured)

    def event(self, step: int, event: str, /, **facts: Any) -> None:
        """Log a single event, such as "rollback"; `facts` are plain values.

        After a rollback, pass the step that was restored: entries of later steps are removed.
        """
        head = {"kind": "event", "step": step, "event": event}
        self._line({**head, **facts, **head})  # first and last: a fact of the same name cannot replace a field
        text = ", ".join(f"{name} {value}" for name, value in facts.items())
        self._events.text(step, f"events/{event}", f"step {step}: {event}{f' ({text})' if text else ''}")
        self._events.flush()

    def images(self, step: int, name: str, images_BHW3_uint8: Sequence[Uint8Array]) -> None:
        """Log images of equal or different sizes."""
        self._events.images(step, name, images_BHW3_uint8)
        self._events.flush()
        folder = self._out_dir / IMAGES_DIR
        for number, image in enumerate(images_BHW3_uint8):
            path = folder / f"{name}-{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            with replace_when_done(path) as partial:
                Image.fromarray(np.ascontiguousarray(image)).save(partial, "PNG", compress_level=_PNG_LEVEL)

    def histograms(self, step: int, by_path: Mapping[str, Any]) -> None:
        """Log histograms of variables or arrays, by a name such as `backbone/conv1/kernel`."""
        for path, values in by_path.items():
            self._events.histogram(step, f"weights/{path}", np.asarray(values))
        self._events.flush()

    def close(self) -> None:
        self._lines.close()
        self._events.close()

    def _numbers(self, kind: str, step: int, lines: Mapping[str, float], scalars: Mapping[str, float]) -> None:
        self._line({"kind": kind, "step": step, **lines})
        for name, value in scalars.items():
            self._events.scalar(step, f"{kind}/{name}", value)
        self._events.flush()

    def _line(self, row: dict[str, Any]) -> None:
        self._lines.write(to_strict_json({**row, "time": round(time.time(), 3)}) + "\n")
        self._lines.flush()


def forget_lines_after(path: Path, step: int) -> None:
    """Remove the lines of later steps and invalid lines, such as a truncated one.

    The file is replaced atomically: readers see the old or the new content.
    """
    if not path.is_file():
        return
    with path.open("rb") as lines:
        if all(_is_valid_until(line, step) for line in lines):
            return
    with path.open("rb") as lines, replace_when_done(path) as partial, partial.open("wb") as kept:
        kept.writelines(line for line in lines if _is_valid_until(line, step))


def _is_valid_until(line: bytes, step: int) -> bool:
    try:
        return line.endswith(b"\n") and int(json.loads(line)["step"]) <= step
    except (ValueError, KeyError, TypeError):
        return False
