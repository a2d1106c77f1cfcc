"""Where a training that TFX started lies until it is finished, so that the next execution goes on from it.

TFX gives each execution folders of its own, and deletes them when the executor raises, as it does at the end of a
preempted training. So we train in a folder beside them that is named by what is trained: settings, label map and data.
At the end it becomes the execution's, by one rename. A run that was killed, stopped or failed is found again by
whoever is asked to train the same.

On a cluster an execution's folders go with its container. There the environment names a folder that stays.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from detloom.schemas.config import TrainEvalConfig
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap, format_label_map
from detloom.schemas.typed_dict import to_canonical_json
from detloom.trainer_module.move_folder import move_folder

UNFINISHED_DIR = "unfinished"  # beside the folders of executions
TRAINING_DIR_VARIABLE = "DETLOOM_TRAINING_DIR"  # environment: all unfinished trainings lie in that folder instead
_MAX_SHOWN = 5
_LOGGER = logging.getLogger("detloom")


def run_key(config: TrainEvalConfig, label_map: LabelMap, data: str) -> str:
    """16 hex digits: equal for trainings of which one may go on where the other was."""
    texts = (to_canonical_json(config), format_label_map(label_map), data)
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def unfinished_folder(node_dir: Path) -> Path:
    """Where unfinished trainings of a node lie."""
    elsewhere = os.environ.get(TRAINING_DIR_VARIABLE)
    return Path(elsewhere) if elsewhere else node_dir / UNFINISHED_DIR


@contextlib.contextmanager
def unfinished_run(run_dir: Path, key: str, *, is_chief: bool = True) -> Iterator[Path]:
    """A folder to train in, whatever of it is there already; at the end it becomes `run_dir`.

    After an exception it stays for the next execution. Where several workers train, the chief alone moves it.

    Args:
        run_dir: the execution's own, empty or not there yet.

    Raises:
        InputError: if another process trains the same now.
    """
    folder = unfinished_folder(run_dir.parent) / key
    if not is_chief:
        yield folder
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_suffix(".lock")):
        if folder.is_dir():
            _LOGGER.info("This training was begun before; it goes on from %s.", folder)
        elif others := sorted(path.name for path in folder.parent.glob("[!.]*") if path.is_dir()):
            unfinished = f"{', '.join(others[:_MAX_SHOWN])}{', ...' if len(others) > _MAX_SHOWN else ''}"
            _LOGGER.info(
                "This training begins anew: what is unfinished in %s has other settings or data (%s).",
                folder.parent,
                unfinished,
            )
        folder.mkdir(exist_ok=True)
        yield folder
        move_folder(folder, run_dir)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """The system lets go of the lock when the process ends, however it ends. The file stays: to remove it is a race."""
    with path.open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"{path.with_suffix('')}: another process trains the same settings on the same data now; wait for it."
            ) from None
        except OSError as error:  # not every network file system has locks
            _LOGGER.warning("%s: cannot be locked (%s); let no other process train the same.", path, error)
        yield
