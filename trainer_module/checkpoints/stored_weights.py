"""Weights of any origin under the paths of our variables: zoo, google/automl, keras.applications, our own."""

import functools
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import keras
import numpy as np
import tensorflow as tf

from detloom.schemas import detections
from detloom.schemas.config import IMAGENET, Model
from detloom.schemas.errors import InputError
from detloom.schemas.model_config import Ssd
from detloom.schemas.network_config import BiFpn
from detloom.trainer_module.checkpoints.automl_keys import automl_values, automl_variables, is_training_state
from detloom.trainer_module.checkpoints.keras_weights import is_keras_file, read_keras_weights
from detloom.trainer_module.checkpoints.odapi_keys import VALUE, odapi_keys
from detloom.trainer_module.checkpoints.own_checkpoint import (
    SAVED_MODEL_WEIGHTS,
    WEIGHTS_DIR,
    WEIGHTS_FILE,
    evaluates_averages,
    find_best_weights,
    read_class_names,
)
from detloom.trainer_module.checkpoints.read_checkpoint import (
    CheckpointFile,
    check_path,
    escape_name,
    read_checkpoint,
    refused_as_input,
)
from detloom.trainer_module.variable_names import PARTS, layer_variable, part_of, variables_by_path

Origin = Literal["odapi_detector", "odapi_backbone", "automl", "keras", "own"]
DESCRIPTIONS: dict[Origin, str] = {
    "odapi_detector": "a detector of the Object Detection API",
    "odapi_backbone": "a backbone from training on classification",
    "automl": "an EfficientDet of google/automl",
    "keras": "a backbone of keras.applications",
    "own": "a detector of detloom",
}
# A backbone's layers in a classification checkpoint: the Object Detection API's own, TensorFlow Models', and Keras'.
_BACKBONE_ROOTS = ("feature_extractor", "backbone", "model/backbone", "model", "")
_LAYER = re.compile(r"layer_with_weights-\d+/.*")
_MAX_ROOTS = 8  # named in a message
# How keys begin that are of none but a head; what else a detector has is backbone and neck.
_ODAPI_HEADS = ("model/_box_predictor/", "model/_prediction_head_dict/", "model/_first_stage_box_predictor/")
_AUTOML_PARTS = {
    "backbone": ("efficientnet-",),
    "neck": ("resample_p6/", "fpn_cells/"),
    "head": ("box_net/", "class_net/"),
}


@dataclass(frozen=True)
class StoredValue:
    """What is stored for one of our variables, as that would hold it.

    Attributes:
        keys: under which it is stored; several where ours holds what are scalars there.
    """

    keys: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], np.ndarray]


@dataclass(frozen=True)
class StoredWeights:
    """What was found.

    Attributes:
        where: path, as it was given.
        values: by the path of our variable; what the file lacks is left out.
        shapes: by key, of all weights in the file.
        parts: which of backbone, neck and head the file has, whether it fits ours or not.
        class_names: what its class channels mean, the background's too; empty if the file does not say.
    """

    where: str
    origin: Origin
    values: dict[str, StoredValue]
    shapes: dict[str, tuple[int, ...]]
    parts: frozenset[str]
    class_names: tuple[str, ...] = ()


def find_stored_weights(where: str, config: Model, network: keras.Model) -> StoredWeights:
    """Open what `train.fine_tune_checkpoint` names.

    Raises:
        InputError: if nothing is there, it cannot be read, or it is of no known kind.
    """
    paths = list(variables_by_path(network))
    where = _tidy(where)
    check_path(where)
    if where == IMAGENET or is_keras_file(where):
        extractor = getattr(config, "feature_extractor", None)  # a detector may have a backbone of its own
        return _from_keras(where, read_keras_weights(where, extractor), paths)
    with refused_as_input(where):
        path = _find_in_folder(where)
    file = read_checkpoint(path)
    if not file.stores_objects:
        return _from_names(where, file, config, network)
    if any(key.startswith("network/backbone.S") for key in file.shapes):
        return _from_own(where, file, paths)
    keys_by_name = odapi_keys(config, network)
    keys = {path: key for path in paths if (key := keys_by_name.get(layer_variable(path)))}
    if any(key.startswith("model/_") for key in file.shapes):
        found = {path: found for path, key in keys.items() if (found := file.find_key(key))}
        has_head = any(key.startswith(_ODAPI_HEADS) for key in file.shapes)
        return _from_file(where, "odapi_detector", file, found, PARTS if has_head else ("backbone", "neck"))
    backbone = _find_backbone(file, keys)
    if backbone:
        return _from_file(where, "odapi_backbone", file, backbone, ("backbone",))
    raise InputError(
        f"train.fine_tune_checkpoint: {where} is no checkpoint of a detector or a backbone: it holds "
        f"{_roots(file.shapes)}; allowed: one of the TF2 detection zoo, of google/automl's EfficientDet, or of detloom."
    )


def foreign_names(config: Model, network: keras.Model) -> dict[str, tuple[str, ...]]:
    """By path, what the variable is called in checkpoints of the Object Detection API and of google/automl."""
    keys = odapi_keys(config, network)
    try:
        automl = automl_variables(config, network) if isinstance(config, Ssd) else {}
    except InputError:  # no EfficientDet of theirs
        automl = {}
    names: dict[str, tuple[str, ...]] = {}
    for path in variables_by_path(network):
        name = layer_variable(path)
        ours = (keys[name].removesuffix(VALUE),) if name in keys else ()
        names[path] = (*ours, *(automl[name].names if name in automl else ()))
    return names


# --- where it lies ----------------------------------------------------------------------------------------------------


def _tidy(where: str) -> str:
    """Without what a copied path may bring along at its ends.

    Raises:
        InputError: for a line break inside, which would be one in every message.
    """
    tidy = where.strip()
    if not tidy.isprintable():
        raise InputError(
            f"train.fine_tune_checkpoint: got {where!r}, allowed: a path without line breaks and the like."
        )
    return tidy.rstrip("/") or tidy


def _find_in_folder(where: str) -> str:
    """The checkpoint in a model's folder, in a SavedModel's or in a run's; any other path is returned as it is."""
    if not tf.io.gfile.isdir(where):
        return where
    folder = where
    for candidate in (
        f"{folder}/{WEIGHTS_FILE}",
        f"{folder}/{WEIGHTS_DIR}/{WEIGHTS_FILE}",
        os.path.join(os.path.dirname(folder), WEIGHTS_DIR, WEIGHTS_FILE),  # given was Format-Serving
    ):
        if tf.io.gfile.exists(f"{candidate}.index"):
            return candidate
    versions = sorted((int(name) for name in map(_name, tf.io.gfile.listdir(folder)) if name.isdecimal()), reverse=True)
    for saved_model in (
        folder,
        f"{folder}/{detections.SERVING_FOLDER}",
        *(f"{folder}/{version}" for version in versions),
    ):
        if tf.io.gfile.exists(f"{saved_model}/{detections.SAVED_MODEL_FILE}"):
            return f"{saved_model}/{SAVED_MODEL_WEIGHTS}"
    return find_best_weights(folder) or folder


def _name(entry: str) -> str:
    """Of a file system's entry; some end folders with a slash."""
    return entry.rstrip("/")


# --- by origin --------------------------------------------------------------------------------------------------------


def _from_file(
    where: str,
    origin: Origin,
    file: CheckpointFile,
    keys: Mapping[str, str],
    parts: Iterable[str],
    class_names: tuple[str, ...] = (),
) -> StoredWeights:
    values = {
        path: StoredValue((key,), file.shapes[key], file.dtype(key).name, functools.partial(file.read, key))
        for path, key in keys.items()
    }
    return StoredWeights(where, origin, values, file.weight_shapes(), frozenset(parts), class_names)


def _from_own(where: str, file: CheckpointFile, paths: list[str]) -> StoredWeights:
    """Keys are the paths, escaped; of a run's checkpoint the averages count where that run evaluated them."""
    roots = ["network"]
    if evaluates_averages(file.path):
        roots.insert(0, "averaged_weights")
    keys = {path: [f"{root}/{escape_name(path)}{VALUE}" for root in roots] for path in paths}
    found = {path: next((key for key in its_keys if key in file.shapes), "") for path, its_keys in keys.items()}
    found = {path: key for path, key in found.items() if key}
    parts = [part for part in PARTS if any(key.startswith(f"network/{part}.S") for key in file.shapes)]
    stored = _from_file(where, "own", file, found, parts, read_class_names(file.path))
    # Beside the weights a run's checkpoint holds the run's state, and trained weights beside their averages.
    others = {key for path in found for key in keys[path]} - set(found.values())
    shapes = {key: shape for key, shape in stored.shapes.items() if key.startswith("network/") and key not in others}
    return replace(stored, shapes=shapes | {key: file.shapes[key] for key in found.values()})


def _find_backbone(file: CheckpointFile, keys: Mapping[str, str]) -> dict[str, str]:
    """Keys of the backbone below the root that has most of them; empty if none has any."""
    layers = {path: match[0] for path, key in keys.items() if (match := _LAYER.search(key))}
    best: dict[str, str] = {}
    for root in _BACKBONE_ROOTS:
        prefix = f"{root}/" if root else ""
        found = {
            path: key
            for path, layer in layers.items()
            if part_of(path) == "backbone" and (key := file.find_key(prefix + layer))
        }
        best = found if len(found) > len(best) else best
    return best


def _from_names(where: str, file: CheckpointFile, config: Model, network: keras.Model) -> StoredWeights:
    if not any(name.startswith("efficientnet-") for name in file.shapes):
        raise InputError(
            f"train.fine_tune_checkpoint: {where} stores weights by name, as TensorFlow 1 does; allowed is a "
            "checkpoint written by tf.train.Checkpoint, as those of the TF2 detection zoo, or google/automl's "
            "EfficientDet."
        )
    if not isinstance(config, Ssd) or not isinstance(config.feature_extractor.neck, BiFpn):
        raise InputError(
            f"train.fine_tune_checkpoint: {where} is an EfficientDet of google/automl, but the configuration's "
            "detector has no BiFPN; choose the EfficientDet it belongs to."
        )
    sources = automl_variables(config, network)
    arrays = automl_values(sources, file.read, set(file.shapes), use_moving_average=True)
    values: dict[str, StoredValue] = {}
    for path in variables_by_path(network):
        name = layer_variable(path)
        if name in arrays:
            values[path] = _held(sources[name].names, arrays[name])
    shapes = {name: shape for name, shape in file.weight_shapes().items() if not is_training_state(name)}
    parts = [part for part, roots in _AUTOML_PARTS.items() if any(name.startswith(roots) for name in shapes)]
    return StoredWeights(where, "automl", values, shapes, frozenset(parts))


def _held(keys: tuple[str, ...], array: np.ndarray) -> StoredValue:
    return StoredValue(keys, array.shape, str(array.dtype), lambda: array)


def _from_keras(where: str, arrays: Mapping[str, np.ndarray], paths: list[str]) -> StoredWeights:
    values = {
        path: _held((name,), array)
        for path in paths
        if part_of(path) == "backbone" and (array := arrays.get(name := layer_variable(path))) is not None
    }
    if not values:
        raise InputError(
            f"train.fine_tune_checkpoint: {where} has no layer of this backbone; it holds {_roots(arrays)}."
        )
    shapes = {name: array.shape for name, array in arrays.items()}
    return StoredWeights(where, "keras", values, shapes, frozenset({"backbone"}))


def _roots(keys: Mapping[str, object]) -> str:
    """What the stored objects are called, two levels deep."""
    roots = sorted({"/".join(key.split("/")[:2]) for key in keys})
    more = f" and {len(roots) - _MAX_ROOTS} more" if len(roots) > _MAX_ROOTS else ""
    return ", ".join(roots[:_MAX_ROOTS]) + more if roots else "no weights"
