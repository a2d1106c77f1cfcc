"""The checkpoints for resuming a run: written atomically; a corrupt one is skipped and quarantined."""

import logging
import re
import shutil
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError

from detloom.schemas.errors import InputError
from detloom.schemas.model.config import Train
from detloom.schemas.reading.replace_when_done import sync
from detloom.schemas.reading.text_file import write_text_file
from detloom.trainer_module.weights.odapi_keys import VALUE

_NAME = "ckpt"
_INDEX = re.compile(rf"{_NAME}-(\d+)\.index")
_FILE = re.compile(rf"{_NAME}-(\d+)\..+")
_UNFINISHED_DIR = "unfinished"  # TensorFlow writes here first: the index file exists before its content is complete
_DAMAGED_DIR = "damaged"  # unreadable checkpoints; kept, because the cause may be temporary
_DAMAGE = (tf.errors.OpError, IndexError, RuntimeError, DecodeError)  # TensorFlow's readers raise all of them
_MAX_UNSAVED_SECONDS = 600.0  # at most this much work is lost if the machine is killed
_MAX_CAUSE = 300  # characters of TensorFlow's message in ours
_LOGGER = logging.getLogger("detloom")


class RunCheckpoints:
    """Saves and restores the state of one run in one folder, as `ckpt-<step>`.

    A checkpoint gets its name only after all of it is written and synced to disk. TensorFlow stores a checksum of every
    tensor and verifies it when restoring. A killed process leaves the earlier checkpoints intact.
    """

    def __init__(
        self,
        folder: Path,
        state: Mapping[str, Any],
        train: Train,
        *,
        is_chief: bool = True,
        optional: Collection[str] = (),
        options: tf.train.CheckpointOptions | None = None,
    ) -> None:
        """Nothing is read or written yet.

        Args:
            state: the objects to save: variables, objects that track variables, or dicts of these, by name.
            is_chief: False saves to a temporary folder, because every worker has to take part in saving.
            optional: variables in dicts of `state`, as "<dict>/<name>"; those that a checkpoint lacks keep their
                value.
            options: for reading and writing.
        """
        self._folder, self._is_chief = folder, is_chief
        self._max_to_keep = train.max_to_keep
        self._span_seconds = 3600 * train.keep_checkpoint_every_n_hours
        self._state, self._optional, self._options = state, optional, options
        self._checkpoint = tf.train.Checkpoint(**state)
        self._last_step: int | None = None
        self._last_time = time.monotonic()

    @property
    def steps(self) -> list[int]:
        """Return the steps of the existing checkpoints in ascending order."""
        names = (_INDEX.fullmatch(path.name) for path in self._folder.glob(f"{_NAME}-*.index"))
        return sorted(int(name.group(1)) for name in names if name)

    @property
    def is_overdue(self) -> bool:
        """True if the last save or restore was more than ten minutes ago."""
        return time.monotonic() - self._last_time > _MAX_UNSAVED_SECONDS

    def save(self, step: int) -> None:
        """Save the state at a step, then delete checkpoints that are no longer kept.

        The checkpoint that was saved or restored last is not written again.
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
            with tempfile.TemporaryDirectory() as discarded:
                self._checkpoint.write(str(Path(discarded) / _NAME), self._options)
        self._last_step, self._last_time = step, time.monotonic()

    def restore_newest(self) -> int | None:
        """Restore the newest intact checkpoint; newer corrupt ones are logged and quarantined.

        Returns:
            Its step; None if there is no checkpoint.

        Raises:
            InputError: if there are checkpoints but none is intact, or one lacks a variable of this run.
        """
        damage: dict[int, str] = {}
        for step in reversed(self.steps):
            try:
                self._for_reading(step).read(self._path(step), self._options).assert_existing_objects_matched()
            except _DAMAGE as error:
                damage[step] = f"{self._path(step)} ({_cause(error)})"
                continue
            except (AssertionError, ValueError) as error:
                raise InputError(
                    f"{self._path(step)}: this run cannot resume from it ({_cause(error)}); train into another folder, "
                    "with train.fine_tune_checkpoint set to this one to keep its weights."
                ) from error
            for damaged, what in damage.items():
                _LOGGER.warning(
                    "Corrupt checkpoint: %s. It is moved to the folder '%s'; step %d is the newest intact one.",
                    what,
                    _DAMAGED_DIR,
                    step,
                )
                if self._is_chief:
                    self._quarantine(damaged)
            self._last_step, self._last_time = step, time.monotonic()
            return step
        if damage:
            raise InputError(
                f"{self._folder}: no checkpoint is intact: {'; '.join(damage.values())}; restore one from a backup, or "
                "train into another folder."
            )
        return None

    def quarantine_newest(self) -> bool:
        """Quarantine the newest checkpoint. Return False if it is the only one, and on workers other than the chief."""
        if not self._is_chief or len(self.steps) < 2:
            return False
        self._quarantine(self.steps[-1])
        self._last_step = None
        return True

    def _for_reading(self, step: int) -> tf.train.Checkpoint:
        """Return the state without the optional variables that a checkpoint lacks."""
        if not self._optional:
            return self._checkpoint
        stored = tf.train.load_checkpoint(self._path(step)).get_variable_to_shape_map()
        missing = {name for name in self._optional if f"{name}{VALUE}" not in stored}
        return tf.train.Checkpoint(
            **{
                group: {name: variable for name, variable in value.items() if f"{group}/{name}" not in missing}
                if isinstance(value, Mapping)
                else value
                for group, value in self._state.items()
            }
        )

    def _write(self, step: int) -> None:
        unfinished = self._folder / _UNFINISHED_DIR
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        self._checkpoint.write(str(unfinished / f"{_NAME}-{step}"), self._options)
        for path in _index_last(unfinished.iterdir()):
            sync(path)
            path.replace(self._folder / path.name)
        unfinished.rmdir()

    def _kept(self, steps: list[int]) -> list[int]:
        """Return the newest steps, and the last step of each completed span of `keep_checkpoint_every_n_hours`."""
        span_of = {step: Path(f"{self._path(step)}.index").stat().st_mtime // self._span_seconds for step in steps}
        last_of_span = {span: step for step, span in span_of.items()}
        newest = steps[-self._max_to_keep :]
        return [step for step in steps if step in newest or last_of_span[span_of[step]] == step]

    def _write_list(self, steps: list[int]) -> None:
        """Write TensorFlow's list for tools that call `tf.train.latest_checkpoint`; this class does not read it."""
        lines = [f'model_checkpoint_path: "{_NAME}-{steps[-1]}"']
        lines += [f'all_model_checkpoint_paths: "{_NAME}-{step}"' for step in steps]
        write_text_file(self._folder / "checkpoint", "\n".join(lines) + "\n")

    def _delete_but(self, steps: list[int]) -> None:
        """Delete all other checkpoints, including partial ones of a killed process."""
        for path in reversed(_index_last(self._folder.glob(f"{_NAME}-*"))):
            match = _FILE.fullmatch(path.name)
            if match and int(match.group(1)) not in steps:
                path.unlink(missing_ok=True)

    def _quarantine(self, step: int) -> None:
        (self._folder / _DAMAGED_DIR).mkdir(exist_ok=True)
        for path in self._folder.glob(f"{_NAME}-{step}.*"):
            path.replace(self._folder / _DAMAGED_DIR / path.name)

    def _path(self, step: int) -> str:
        return str(self._folder / f"{_NAME}-{step}")


def _index_last(paths: Iterable[Path]) -> list[Path]:
    """Sort the files of checkpoints so that the index, which makes a checkpoint visible, comes last."""
    return sorted(paths, key=lambda path: path.suffix == ".index")


def _cause(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text[:_MAX_CAUSE] + ("..." if len(text) > _MAX_CAUSE else "")
