"""Is a checkpoint there, whole, and of the kind that training is to start from?"""

import re
from collections.abc import Collection
from typing import Literal, get_args

import tensorflow as tf

from detloom.schemas.config import PLACEHOLDER
from detloom.schemas.config_checks import placeholder_sentence
from detloom.schemas.errors import InputError

CheckpointKind = Literal["classification", "detection", "full"]

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # the key that tf.train.Checkpoint writes and tf.compat.v1's Saver not
# Beginnings of keys, all of which a checkpoint of that kind has in the Object Detection API's TF2 layout.
_PREFIXES: dict[CheckpointKind, tuple[str, ...]] = {
    "classification": ("feature_extractor/",),
    "detection": ("model/_feature_extractor/",),
    "full": ("model/_feature_extractor/", "model/_box_predictor/"),
}
_MAX_ROOTS = 8  # named in a message


def check_checkpoint(path: str, kind: CheckpointKind) -> None:
    """Check what `train.fine_tune_checkpoint` names; every value is read once, so that a torn file shows.

    Args:
        path: without ending, such as ".../ckpt-0".
        kind: what it is to hold, as `train.fine_tune_checkpoint_type`.

    Raises:
        InputError: if it is the zoo's placeholder, missing, incomplete, broken, not written by `tf.train.Checkpoint`,
            or lacks what this kind has.
    """
    assert kind in get_args(CheckpointKind), kind
    if PLACEHOLDER in path:
        raise InputError(placeholder_sentence(path))
    _check_files(path)
    keys = _read_keys(path)
    if _OBJECT_GRAPH not in keys:
        raise InputError(
            f"train.fine_tune_checkpoint: {path} stores weights by name, as TensorFlow 1 and google/automl do; allowed "
            "is a checkpoint written by tf.train.Checkpoint, as those of the TF2 detection zoo."
        )
    missing = [prefix for prefix in _PREFIXES[kind] if not any(key.startswith(prefix) for key in keys)]
    if missing:
        raise InputError(
            f"train.fine_tune_checkpoint_type: got '{kind}', but {path} has no {' and no '.join(missing)}..., it holds "
            f"{_roots(keys)}{_advice(keys)}."
        )


def _check_files(path: str) -> None:
    endings = (".index", ".data-")
    if any(ending in path.rpartition("/")[2] for ending in endings):
        stem = path[: max(path.rfind(ending) for ending in endings)]
        raise InputError(f"train.fine_tune_checkpoint: got {path}, allowed: the path without ending, {stem}.")
    if not tf.io.gfile.exists(f"{path}.index"):
        latest = tf.train.latest_checkpoint(path) if tf.io.gfile.isdir(path) else None
        hint = f" Did you mean '{latest}'?" if latest else ""
        raise InputError(f"train.fine_tune_checkpoint: no checkpoint {path}: there is no {path}.index.{hint}")
    folder, _, stem = path.rpartition("/")
    counts = [
        int(match[1])
        for name in tf.io.gfile.listdir(folder or ".")
        if (match := re.fullmatch(rf"{re.escape(stem)}\.data-\d{{5}}-of-(\d{{5}})", name))
    ]
    if not counts or len(counts) != max(counts):
        raise InputError(
            f"train.fine_tune_checkpoint: {path} is incomplete: got {len(counts)} of {max(counts, default=1)} files "
            f"{stem}.data-...; copy it again with all of them."
        )


def _read_keys(path: str) -> Collection[str]:
    try:
        reader = tf.train.load_checkpoint(path)
        keys: Collection[str] = reader.get_variable_to_shape_map().keys()
        for key in keys:
            reader.get_tensor(key)
    except (tf.errors.OpError, IndexError, RuntimeError, ValueError) as error:  # a torn file makes any of them
        cause = " ".join(str(error).split())
        raise InputError(
            f"train.fine_tune_checkpoint: {path} cannot be read ({cause}); copy it again from where it came from."
        ) from None
    return keys


def _roots(keys: Collection[str]) -> str:
    """What the checkpoint's objects are called, two levels deep."""
    roots = sorted({"/".join(key.split("/")[:2]) for key in keys if "/.ATTRIBUTES/" in key})
    more = f" and {len(roots) - _MAX_ROOTS} more" if len(roots) > _MAX_ROOTS else ""
    return ", ".join(roots[:_MAX_ROOTS]) + more if roots else "no weights"


def _advice(keys: Collection[str]) -> str:
    """The kinds that it could be."""
    kinds = [
        kind
        for kind, prefixes in _PREFIXES.items()
        if all(any(key.startswith(prefix) for key in keys) for prefix in prefixes)
    ]
    return "; set it to " + " or ".join(f"'{kind}'" for kind in kinds) if kinds else ""
