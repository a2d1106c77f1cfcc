"""The checkpoints that a run goes on from: whole or not there, and a damaged one costs no more than itself."""

import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError

from detloom.schemas.config import Train
from detloom.schemas.errors import InputError
from detloom.schemas.text_file import write_text_file

_NAME = "ckpt"
_INDEX = re.compile(rf"{_NAME}-(\d+)\.index")
_FILE = re.compile(rf"{_NAME}-(\d+)\..+")
_UNFINISHED_DIR = "unfinished"  # where TensorFlow writes: it opens the index under its last name, and then fills it
_DAMAGED_DIR = "damaged"  # what could not be read; perhaps it can be at another time, so it is not deleted
_DAMAGE = (tf.errors.OpError, IndexError, RuntimeError, DecodeError)  # TensorFlow's readers raise all of them
_MAX_CAUSE = 300  # characters of TensorFlow's message in ours
_LOGGER = logging.getLogger("detloom")


class RunCheckpoints:
    """Saves and restores the state of one run in one folder, as `ckpt-<step>`.

    A checkpoint gets its name only when all of it is written and on the disk, and TensorFlow keeps a checksum of every
    tensor, which is compared when it is restored. A process that is killed leaves the checkpoints before it.
    """

    def __init__(self, folder: Path, state: Mapping[str, Any], train: Train, *, is_chief: bool = True) -> None:
        """Nothing is read or written yet.

        Args:
            state: what is saved: variables, objects that track them, or dicts of these, by name.
            is_chief: False writes where nobody looks: every worker has to take part in saving, one of them counts.
        """
        self._folder, self._is_chief = folder, is_chief
        self._max_to_keep = train.max_to_keep
        self._span_seconds = 3600 * train.keep_checkpoint_every_n_hours
        self._checkpoint = tf.train.Checkpoint(**state)
        self._last_step: int | None = None

    @property
    def steps(self) -> list[int]:
        """Steps of the checkpoints that are there, rising."""
        names = (_INDEX.fullmatch(path.name) for path in self._folder.glob(f"{_NAME}-*.index"))
        return sorted(int(name.group(1)) for name in names if name)

    def save(self, step: int) -> None:
        """Save the state at a step; checkpoints that need not be kept any longer go afterwards.

        The one that was saved or restored last is not written again: it is whole, and the same.
        """
        if step == self._last_step:
            return
        if self._is_chief:
            self._write(step)
            sync(self._folder)
            kept = self._kept(self.steps)
            self._write_list(kept)
            self._delete_but(kept)
        else:
            with tempfile.TemporaryDirectory() as unread:
                self._checkpoint.write(str(Path(unread) / _NAME))
        self._last_step = step

    def restore_newest(self) -> int | None:
        """Restore the newest checkpoint that is whole; damaged ones that are newer are named in the log and put away.

        Returns:
            Its step; None if there is no checkpoint.

        Raises:
            InputError: if there are checkpoints but none is whole, or one lacks what this run trains.
        """
        damage: dict[int, str] = {}
        for step in reversed(self.steps):
            try:
                self._checkpoint.read(self._path(step)).assert_existing_objects_matched()
            except _DAMAGE as error:
                damage[step] = f"{self._path(step)} ({_cause(error)})"
                continue
            except (AssertionError, ValueError) as error:
                raise InputError(
                    f"{self._path(step)}: this run cannot go on from it ({_cause(error)}); train into another folder, "
                    "with train.fine_tune_checkpoint set to this one to keep its weights."
                ) from error
            for damaged, what in damage.items():
                _LOGGER.warning(
                    "Damaged checkpoint: %s. It is put into the folder %s there; step %d is the newest that is whole.",
                    what,
                    _DAMAGED_DIR,
                    step,
                )
                if self._is_chief:
                    self._put_away(damaged)
            self._last_step = step
            return step
        if damage:
            raise InputError(
                f"{self._folder}: no checkpoint is whole: {'; '.join(damage.values())}; put one back, or train into "
                "another folder."
            )
        return None

    def put_newest_away(self) -> bool:
        """Go on from the one before, the next time that one is restored. False: there is none, and nothing is done."""
        if len(self.steps) < 2:
            return False
        if self._is_chief:
            self._put_away(self.steps[-1])
        self._last_step = None
        return True

    def _write(self, step: int) -> None:
        unfinished = self._folder / _UNFINISHED_DIR
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        self._checkpoint.write(str(unfinished / f"{_NAME}-{step}"))
        for path in _index_last(unfinished.iterdir()):
            sync(path)
            path.replace(self._folder / path.name)
        unfinished.rmdir()

    def _kept(self, steps: list[int]) -> list[int]:
        """The newest ones, and the last one of each span of `keep_checkpoint_every_n_hours` that is over."""
        span_of = {step: Path(f"{self._path(step)}.index").stat().st_mtime // self._span_seconds for step in steps}
        last_of_span = {span: step for step, span in span_of.items()}
        newest = steps[-self._max_to_keep :]
        return [step for step in steps if step in newest or last_of_span[span_of[step]] == step]

    def _write_list(self, steps: list[int]) -> None:
        """TensorFlow's list, for tools that ask `tf.train.latest_checkpoint`; we go by the files."""
        lines = [f'model_checkpoint_path: "{_NAME}-{steps[-1]}"']
        lines += [f'all_model_checkpoint_paths: "{_NAME}-{step}"' for step in steps]
        write_text_file(self._folder / "checkpoint", "\n".join(lines) + "\n")

    def _delete_but(self, steps: list[int]) -> None:
        """What a killed process left of others goes too."""
        for path in reversed(_index_last(self._folder.glob(f"{_NAME}-*"))):
            match = _FILE.fullmatch(path.name)
            if match and int(match.group(1)) not in steps:
                path.unlink(missing_ok=True)

    def _put_away(self, step: int) -> None:
        (self._folder / _DAMAGED_DIR).mkdir(exist_ok=True)
        for path in self._folder.glob(f"{_NAME}-{step}.*"):
            path.replace(self._folder / _DAMAGED_DIR / path.name)

    def _path(self, step: int) -> str:
        return str(self._folder / f"{_NAME}-{step}")


def _index_last(paths: Iterable[Path]) -> list[Path]:
    """In the order in which a checkpoint's files come; they go in the reverse. By its index it is known."""
    return sorted(paths, key=lambda path: path.suffix == ".index")


def sync(path: Path) -> None:
    """Wait until a file, or what stands in a folder, is on the disk: after that, a machine may lose its power."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _cause(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text[:_MAX_CAUSE] + ("..." if len(text) > _MAX_CAUSE else "")
