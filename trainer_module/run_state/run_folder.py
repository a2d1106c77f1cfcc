"""The folder of a training run: its settings and data, and the folder of a run that TFX has not finished."""

import contextlib
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from detloom.schemas.contracts.label_map import LABEL_MAP_FILE, LabelMap, format_label_map
from detloom.schemas.errors import InputError
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.reading.replace_when_done import move_folder
from detloom.schemas.reading.text_file import read_text_file, write_text_file
from detloom.schemas.reading.typed_dict import from_json, to_canonical_json, to_dict
from detloom.trainer_module.data.records import content_digest
from detloom.trainer_module.files.folder_lock import hold_folder_lock
from detloom.trainer_module.run_state.evaluations import HISTORY_FILE
from detloom.trainer_module.run_state.nonfinite import NONFINITE_FILE
from detloom.trainer_module.weights.own_checkpoint import BEST_DIR

CONFIG_FILE = "config.json"  # the effective configuration
DATA_FILE = "data.json"  # fingerprint of the training and evaluation data
_CONTENT = "content"  # in DATA_FILE: digest of each split
_HEAD_BYTES = 65_536
UNFINISHED_DIR = "unfinished"  # beside the folders of executions
_LEASE_SECONDS = 120.0  # more than the lease of NFS version 4, by default 90 s
TRAINING_DIR_VARIABLE = "DETLOOM_TRAINING_DIR"  # environment variable: folder of all unfinished runs instead
_MAX_SHOWN = 5
_LOGGER = logging.getLogger("detloom")


def check_same_run(out_dir: Path, config: TrainEvalConfig, label_map: LabelMap, data: str) -> None:
    """Raise InputError if the folder holds a different run, whose weights would otherwise be continued.

    The precision may differ: weights and the state of the optimizer are float32 in every precision.
    """
    config_path, advice = out_dir / CONFIG_FILE, "train into another folder"
    if config_path.is_file():
        try:
            stored = from_json(TrainEvalConfig, read_text_file(config_path))
        except ValueError as error:  # InputError, or no JSON
            raise InputError(f"{config_path}: the folder holds another run ({error}); {advice}.") from None
        before, after = stored.train.precision, config.train.precision
        stored = replace(stored, train=replace(stored.train, precision=after))
        if stored != config:
            difference = _first_difference(to_dict(config), to_dict(stored))
            raise InputError(f"{config_path}: the folder holds a run with other settings ({difference}); {advice}.")
        if before != after:
            _LOGGER.warning("%s: train.precision was %s, and is %s from now on.", config_path, before, after)
    map_path, data_path = out_dir / LABEL_MAP_FILE, out_dir / DATA_FILE
    if map_path.is_file() and map_path.read_bytes() != format_label_map(label_map).encode():
        raise InputError(f"{map_path}: the folder holds a run with other classes; {advice}.")
    if data_path.is_file() and data != read_text_file(data_path):
        raise InputError(f"{data_path}: the folder holds a run with other data; {advice}.")


def write_settings(out_dir: Path, config: TrainEvalConfig, label_map: LabelMap, data: str) -> None:
    """Write the files that `check_same_run` reads."""
    out_dir.mkdir(parents=True, exist_ok=True)
    write_text_file(out_dir / LABEL_MAP_FILE, format_label_map(label_map))
    write_text_file(out_dir / DATA_FILE, data)
    write_text_file(out_dir / CONFIG_FILE, to_canonical_json(config))


def data_fingerprint(train_files: Sequence[str], eval_files: Sequence[str]) -> str:
    """Return JSON: name, size and hash of the first bytes of each shard, and a digest of the content of each split."""
    splits = {"train": sorted(train_files), "eval": sorted(eval_files)}
    shards = {split: [_shard(file) for file in files] for split, files in splits.items()}
    return json.dumps({**shards, _CONTENT: {split: content_digest(files) for split, files in splits.items()}})


def copy_run_state(out_dir: Path, own_dir: Path) -> None:
    """Copy the state that a worker other than the chief needs to resume; it then keeps its own copy."""
    for name in (HISTORY_FILE, NONFINITE_FILE):
        if (out_dir / name).is_file():
            shutil.copyfile(out_dir / name, own_dir / name)
    if (out_dir / BEST_DIR).is_dir():
        shutil.copytree(out_dir / BEST_DIR, own_dir / BEST_DIR)


def _shard(file: str) -> tuple[str, int, str]:
    with tf.io.gfile.GFile(file, "rb") as opened:
        head = hashlib.sha256(opened.read(_HEAD_BYTES)).hexdigest()[:16]
    return Path(file).name, tf.io.gfile.stat(file).length, head


def _first_difference(ours: Any, theirs: Any, path: str = "") -> str:
    """Describe the first different value by key path and both values."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping) and ours.keys() == theirs.keys():
        key = next(key for key in ours if ours[key] != theirs[key])
        return _first_difference(ours[key], theirs[key], f"{path}.{key}" if path else key)
    return f"{path}: got {json.dumps(ours)[:200]}, stored {json.dumps(theirs)[:200]}"


def run_key(config: TrainEvalConfig, label_map: LabelMap, data: str) -> str:
    """Return 16 hex digits that are equal for runs that may continue each other."""
    texts = (to_canonical_json(config), format_label_map(label_map), data)
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def unfinished_folder(node_dir: Path) -> Path:
    """Return the folder of a node's unfinished runs."""
    elsewhere = os.environ.get(TRAINING_DIR_VARIABLE)
    return Path(elsewhere) if elsewhere else node_dir / UNFINISHED_DIR


def hold_training_lock(path: Path) -> contextlib.AbstractContextManager[Callable[[], None]]:
    """Hold the lock of a run, also on a network file system without locks; FolderBusyError if another process does.

    In a shared folder it waits first, because NFS releases the lock of a lost machine only after a while.

    Yields a function that raises OSError if the lock file was removed.
    """
    limit = _LEASE_SECONDS if os.environ.get(TRAINING_DIR_VARIABLE) else 0.0  # several machines may share that folder
    return hold_folder_lock(path, "training run", limit_seconds=limit, is_required=False)


@contextlib.contextmanager
def unfinished_run(run_dir: Path, key: str, *, is_chief: bool = True) -> Iterator[Path]:
    """Provide a folder to train in, with its earlier content if any; at the end it becomes `run_dir`.

    After an exception the folder stays for the next execution. Of several workers, only the chief moves it.

    Args:
        run_dir: the execution's own folder, empty or missing.

    Raises:
        FolderBusyError: if another process is training the same run.
        OSError: if the lock file was removed meanwhile, because another process may train in the folder then.
    """
    folder = unfinished_folder(run_dir.parent) / key
    if not is_chief:
        yield folder
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with hold_training_lock(folder.with_suffix(".lock")) as check_held:
        if folder.is_dir():
            _LOGGER.info("Resuming an unfinished training run in %s.", folder)
        elif others := sorted(path.name for path in folder.parent.glob("[!.]*") if path.is_dir()):
            unfinished = f"{', '.join(others[:_MAX_SHOWN])}{', ...' if len(others) > _MAX_SHOWN else ''}"
            _LOGGER.info(
                "Starting a new training run: the unfinished ones in %s have other settings or data (%s).",
                folder.parent,
                unfinished,
            )
        folder.mkdir(exist_ok=True)
        yield folder
        check_held()
        move_folder(folder, run_dir)
