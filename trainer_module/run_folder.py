"""The folder of a training run: what is trained on what, and that no two runs share one."""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from detloom.schemas.config import TrainEvalConfig
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LABEL_MAP_FILE, LabelMap, format_label_map
from detloom.schemas.text_file import read_text_file, write_text_file
from detloom.schemas.typed_dict import from_json, to_canonical_json, to_dict
from detloom.trainer_module.checkpoints.own_checkpoint import BEST_DIR
from detloom.trainer_module.evaluation_history import HISTORY_FILE
from detloom.trainer_module.nonfinite import NONFINITE_FILE

CONFIG_FILE = "config.json"  # the configuration as it was run
DATA_FILE = "data.json"  # what a run is trained and evaluated on
_HEAD_BYTES = 65_536  # of a shard, in its fingerprint: its first pictures


def refuse_another_run(out_dir: Path, config: TrainEvalConfig, label_map: LabelMap, data: str) -> None:
    """Raise InputError if a run of something else stands there: its weights would be taken for ours.

    A setting that a version after it brought counts with its default.
    """
    config_path, advice = out_dir / CONFIG_FILE, "train into another folder"
    if config_path.is_file():
        try:
            stored = from_json(TrainEvalConfig, read_text_file(config_path))
        except ValueError as error:  # InputError, or no JSON
            raise InputError(f"{config_path}: another run stands here ({error}); {advice}.") from None
        if stored != config:
            difference = _first_difference(to_dict(config), to_dict(stored))
            raise InputError(f"{config_path}: another run stands here, with other settings ({difference}); {advice}.")
    for name, text, what in ((LABEL_MAP_FILE, format_label_map(label_map), "classes"), (DATA_FILE, data, "data")):
        path = out_dir / name
        if path.is_file() and path.read_bytes() != text.encode():
            raise InputError(f"{path}: another run stands here, with other {what}; {advice}.")


def write_settings(out_dir: Path, config: TrainEvalConfig, label_map: LabelMap, data: str) -> None:
    """What `refuse_another_run` reads."""
    out_dir.mkdir(parents=True, exist_ok=True)
    write_text_file(out_dir / LABEL_MAP_FILE, format_label_map(label_map))
    write_text_file(out_dir / DATA_FILE, data)
    write_text_file(out_dir / CONFIG_FILE, to_canonical_json(config))


def data_fingerprint(train_files: Sequence[str], eval_files: Sequence[str]) -> str:
    """JSON of the shards of both splits: their names, sizes and a hash over their beginnings."""
    splits = {"train": train_files, "eval": eval_files}
    return json.dumps({split: [_shard(file) for file in sorted(files)] for split, files in splits.items()})


def copy_run_state(out_dir: Path, own_dir: Path) -> None:
    """What a worker that is not chief has to know of a run that it goes on with; it keeps its own copy from here on."""
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
    """Key path and both values, as a person says them."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping) and ours.keys() == theirs.keys():
        key = next(key for key in ours if ours[key] != theirs[key])
        return _first_difference(ours[key], theirs[key], f"{path}.{key}" if path else key)
    return f"{path}: got {json.dumps(ours)[:200]}, there {json.dumps(theirs)[:200]}"
