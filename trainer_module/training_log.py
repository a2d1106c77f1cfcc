"""What a training leaves for people and machines to read: `train_log.jsonl`, TensorBoard's files, pictures."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from detloom.trainer_module.evaluate import Evaluation
from detloom.trainer_module.event_file import EventFile
from detloom.trainer_module.strict_json import to_strict_json

LOG_FILE = "train_log.jsonl"  # one line a host call, an evaluation, an event
TENSORBOARD_DIR = "tensorboard"
PICTURES_DIR = "pictures"  # the newest of each name, as PNG; the older ones are in TensorBoard's files
_PNG_LEVEL = 1  # Pillow's default takes three times as long for a fifth less


class TrainingLog:
    """Writes at once what it is told, so that a killed run has logged all but the line it was writing.

    A line of `train_log.jsonl` is a JSON object with `kind` ("train", "eval" or "event"), `step`, `time` (seconds since
    1970) and numbers by name; null stands for NaN and infinity. The log tells of each step once: what an earlier
    attempt wrote about steps after `first_step` is taken out of the lines, and TensorBoard is told to forget it.
    """

    def __init__(self, out_dir: Path, *, first_step: int, is_chief: bool = True) -> None:
        """Open it for steps after `first_step`.

        Args:
            is_chief: of several workers, one writes; to the others' log, nothing happens.
        """
        self._out_dir, self._is_chief = out_dir, is_chief
        if not is_chief:
            return
        out_dir.mkdir(parents=True, exist_ok=True)
        self._path = out_dir / LOG_FILE
        forget_lines_after(self._path, first_step)
        self._lines = self._path.open("a", encoding="utf-8")
        self._events = EventFile(out_dir / TENSORBOARD_DIR)
        self._events.restart(first_step)
        self._events.flush()

    def __enter__(self) -> "TrainingLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def forget_after(self, step: int) -> None:
        """Training goes back to `step`: take out what was logged of later ones."""
        if not self._is_chief:
            return
        self._lines.close()
        forget_lines_after(self._path, step)
        self._lines = self._path.open("a", encoding="utf-8")
        self._events.restart(step)
        self._events.flush()

    def steps(self, step: int, numbers: Mapping[str, float]) -> None:
        """Means over the steps of a host call that ended with `step`."""
        self._numbers("train", step, numbers, numbers)

    def evaluation(self, step: int, evaluation: Evaluation, *, split: str = "eval") -> None:
        """All numbers, by class too. TensorBoard gets no -1, which only says that there was nothing to measure."""
        numbers = {**evaluation.numbers(), "num_images": evaluation.num_images, "seconds": evaluation.seconds}
        measured = {name: value for name, value in evaluation.numbers().items() if evaluation.explain(name) is None}
        self._numbers(split, step, numbers, measured)

    def event(self, step: int, event: str, /, **facts: Any) -> None:
        """Something that happens once, such as "rollback"; `facts` are plain values.

        After going back, name the step gone back to: what is said of later ones is forgotten.
        """
        if not self._is_chief:
            return
        head = {"kind": "event", "step": step, "event": event}
        self._line({**head, **facts, **head})  # first and last: no fact of that name takes its place
        told = ", ".join(f"{name} {value}" for name, value in facts.items())
        self._events.text(step, f"events/{event}", f"step {step}: {event}{f' ({told})' if told else ''}")
        self._events.flush()

    def pictures(self, step: int, name: str, images_BHW3_uint8: Sequence[npt.NDArray[np.uint8]]) -> None:
        """Pictures, of one size or of several."""
        if not self._is_chief:
            return
        self._events.images(step, name, images_BHW3_uint8)
        self._events.flush()
        folder = self._out_dir / PICTURES_DIR
        for number, image in enumerate(images_BHW3_uint8):
            path = folder / f"{name}-{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial")
            Image.fromarray(np.ascontiguousarray(image)).save(partial, "PNG", compress_level=_PNG_LEVEL)
            partial.replace(path)

    def histograms(self, step: int, by_path: Mapping[str, Any]) -> None:
        """Of variables or arrays, by a name such as `backbone/conv1/kernel`."""
        if not self._is_chief:
            return
        for path, values in by_path.items():
            self._events.histogram(step, f"weights/{path}", np.asarray(values))
        self._events.flush()

    def close(self) -> None:
        if self._is_chief:
            self._lines.close()
            self._events.close()

    def _numbers(self, kind: str, step: int, lines: Mapping[str, float], scalars: Mapping[str, float]) -> None:
        if not self._is_chief:
            return
        self._line({"kind": kind, "step": step, **lines})
        for name, value in scalars.items():
            self._events.scalar(step, f"{kind}/{name}", value)
        self._events.flush()

    def _line(self, row: dict[str, Any]) -> None:
        self._lines.write(to_strict_json({**row, "time": round(time.time(), 3)}) + "\n")
        self._lines.flush()


def forget_lines_after(path: Path, step: int) -> None:
    """Leave out of a log the lines of later steps, and what is no line of it, such as one that breaks off.

    The file is replaced in one go: whoever reads it sees the old or the new one.
    """
    if not path.is_file():
        return
    partial, num_dropped = path.with_suffix(".partial"), 0
    with partial.open("wb") as kept:
        for line, is_kept in _judge_lines(path, step):
            if is_kept:
                kept.write(line)
            else:
                num_dropped += 1
    if num_dropped:
        partial.replace(path)
    else:
        partial.unlink()


def _judge_lines(path: Path, step: int) -> Iterator[tuple[bytes, bool]]:
    with path.open("rb") as file:
        for line in file:
            try:
                row = json.loads(line)
                is_kept = line.endswith(b"\n") and int(row["step"]) <= step
            except (ValueError, KeyError, TypeError):
                is_kept = False
            yield line, is_kept
