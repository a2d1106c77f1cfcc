"""Weights of any origin under the paths of our variables: zoo, google/automl, keras.applications, our own."""

import functools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import keras
import numpy as np
import tensorflow as tf

from detloom.schemas.config import Model
from detloom.schemas.errors import InputError
from detloom.schemas.model_config import Ssd
from detloom.schemas.network_config import BiFpn
from detloom.trainer_module.checkpoints.automl_keys import automl_values, automl_variables, is_training_state
from detloom.trainer_module.checkpoints.keras_weights import IMAGENET, is_keras_file, read_keras_weights
from detloom.trainer_module.checkpoints.odapi_keys import VALUE, odapi_keys
from detloom.trainer_module.checkpoints.own_checkpoint import WEIGHTS_DIR, WEIGHTS_FILE
from detloom.trainer_module.checkpoints.read_checkpoint import CheckpointFile, check_path, escape_name, read_checkpoint
from detloom.trainer_module.variable_names import layer_variable, part_of, variables_by_path

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
    """

    where: str
    origin: Origin
    values: dict[str, StoredValue]
    shapes: dict[str, tuple[int, ...]]

    @property
    def parts(self) -> set[str]:
        """Which of backbone, neck and head it has anything of."""
        return {part_of(path) for path in self.values}


def find_stored_weights(where: str, config: Model, network: keras.Model) -> StoredWeights:
    """Open what `train.fine_tune_checkpoint` names.

    Raises:
        InputError: if nothing is there, it cannot be read, or it is of no known kind.
    """
    paths = list(variables_by_path(network))
    check_path(where)
    if where == IMAGENET or is_keras_file(where):
        return _from_keras(where, read_keras_weights(where, config.feature_extractor), paths)
    file = read_checkpoint(_find_in_folder(where))
    if not file.stores_objects:
        return _from_names(where, file, config, network)
    if any(key.startswith("network/backbone.S") for key in file.shapes):
        return _from_own(where, file, paths)
    keys_by_name = odapi_keys(config, network)
    keys = {path: keys_by_name[layer_variable(path)] for path in paths}
    if any(key.startswith("model/_") for key in file.shapes):
        found = {path: found for path, key in keys.items() if (found := file.find_key(key))}
        return _from_file(where, "odapi_detector", file, found)
    backbone = _find_backbone(file, keys)
    if backbone:
        return _from_file(where, "odapi_backbone", file, backbone)
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
        names[path] = (keys[name].removesuffix(VALUE), *(automl[name].names if name in automl else ()))
    return names


# --- where it lies ----------------------------------------------------------------------------------------------------


def _find_in_folder(where: str) -> str:
    """The checkpoint in a model's folder or in a run's; any other path is returned as it is."""
    if not tf.io.gfile.isdir(where):
        return where
    folder = where.rstrip("/")
    for candidate in (
        f"{folder}/{WEIGHTS_FILE}",
        f"{folder}/{WEIGHTS_DIR}/{WEIGHTS_FILE}",
        f"{folder.rpartition('/')[0]}/{WEIGHTS_DIR}/{WEIGHTS_FILE}",  # given was Format-Serving
    ):
        if tf.io.gfile.exists(f"{candidate}.index"):
            return candidate
    best = tf.io.gfile.glob(f"{folder}/best/ckpt-*.index")  # a run's folder: the best weights, one file
    return str(best[0]).removesuffix(".index") if best else folder


# --- by origin --------------------------------------------------------------------------------------------------------


def _from_file(where: str, origin: Origin, file: CheckpointFile, keys: Mapping[str, str]) -> StoredWeights:
    values = {
        path: StoredValue((key,), file.shapes[key], file.dtype(key).name, functools.partial(file.read, key))
        for path, key in keys.items()
    }
    return StoredWeights(where, origin, values, file.weight_shapes())


def _from_own(where: str, file: CheckpointFile, paths: list[str]) -> StoredWeights:
    """Keys are the paths, escaped; of a run's checkpoint the averages count where that run evaluated them."""
    roots = ["network"]
    if _evaluated_averages(file.path):
        roots.insert(0, "averaged_weights")
    found: dict[str, str] = {}
    for path in paths:
        keys = (f"{root}/{escape_name(path)}{VALUE}" for root in roots)
        key = next((key for key in keys if key in file.shapes), None)
        if key:
            found[path] = key
    return _from_file(where, "own", file, found)


def _evaluated_averages(path: str) -> bool:
    """Whether the run that a checkpoint lies in evaluates the moving average of its weights."""
    config_file = f"{path.rpartition('/')[0]}/../config.json"
    if not tf.io.gfile.exists(config_file):
        return False
    try:
        with tf.io.gfile.GFile(config_file) as opened:
            return bool(json.load(opened)["eval"]["use_moving_averages"])
    except (ValueError, KeyError, TypeError):
        return False


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
            f"backbone is {config.feature_extractor.backbone} without a BiFPN; choose the EfficientDet it belongs to."
        )
    sources = automl_variables(config, network)
    arrays = automl_values(sources, file.read, set(file.shapes), use_moving_average=True)
    values: dict[str, StoredValue] = {}
    for path in variables_by_path(network):
        name = layer_variable(path)
        if name in arrays:
            values[path] = _held(sources[name].names, arrays[name])
    shapes = {name: shape for name, shape in file.weight_shapes().items() if not is_training_state(name)}
    return StoredWeights(where, "automl", values, shapes)


def _held(keys: tuple[str, ...], array: np.ndarray) -> StoredValue:
    return StoredValue(keys, array.shape, str(array.dtype), functools.partial(np.asarray, array))


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
    return StoredWeights(where, "keras", values, {name: array.shape for name, array in arrays.items()})


def _roots(keys: Mapping[str, object]) -> str:
    """What the stored objects are called, two levels deep."""
    roots = sorted({"/".join(key.split("/")[:2]) for key in keys})
    more = f" and {len(roots) - _MAX_ROOTS} more" if len(roots) > _MAX_ROOTS else ""
    return ", ".join(roots[:_MAX_ROOTS]) + more if roots else "no weights"
