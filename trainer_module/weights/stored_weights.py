"""Read weights of any origin by the paths of our variables: zoo, google/automl, Keras, PyTorch, detloom."""

import functools
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import keras
import numpy as np
import tensorflow as tf

from detloom.schemas.contracts import detections
from detloom.schemas.contracts.version_names import parse_versions
from detloom.schemas.errors import InputError, list_first
from detloom.schemas.model.checkpoint_address import is_web_address
from detloom.schemas.model.config import IMAGENET
from detloom.trainer_module.detectors.detector import AutomlSource, Family
from detloom.trainer_module.layers.backbones.efficientnet import is_efficientnet_lite
from detloom.trainer_module.weights.downloaded_archive import fetch_checkpoint
from detloom.trainer_module.weights.keras_weights import KERAS_ENDINGS, read_keras_weights
from detloom.trainer_module.weights.odapi_keys import VALUE, odapi_classification_keys, odapi_keys
from detloom.trainer_module.weights.own_checkpoint import (
    SAVED_MODEL_WEIGHTS,
    WEIGHTS_DIR,
    WEIGHTS_FILE,
    evaluates_averages,
    find_best_weights,
    read_class_names,
)
from detloom.trainer_module.weights.read_checkpoint import (
    CheckpointFile,
    access_errors_as_input_errors,
    check_path,
    escape_name,
    read_checkpoint,
)
from detloom.trainer_module.weights.torch_weights import TORCH_ENDINGS, find_packaged_weights, read_torch_weights
from detloom.trainer_module.weights.variable_names import PARTS, layer_variable, part_of, variables_by_path

Origin = Literal["odapi_detector", "odapi_backbone", "automl", "keras", "torch", "own"]
DESCRIPTIONS: dict[Origin, str] = {
    "odapi_detector": "a detector of the Object Detection API",
    "odapi_backbone": "a backbone trained on classification",
    "automl": "an EfficientDet of google/automl",
    "keras": "a backbone of keras.applications",
    "torch": "a backbone in a PyTorch file",
    "own": "a detector of detloom",
}
# A backbone's layers in a classification checkpoint: the Object Detection API's own, TensorFlow Models', and Keras'.
_BACKBONE_ROOTS = ("feature_extractor", "backbone", "model/backbone", "model", "")
_LAYER = re.compile(r"layer_with_weights-\d+/.*")
_MOVING_AVERAGE = "/ExponentialMovingAverage"  # suffixes of the names of google/automl
_SLOTS = ("/Momentum", "/Momentum_1", "/Adam", "/Adam_1")
_COUNTERS = ("global_step",)
# Prefixes of keys that only heads have; all other keys of a detector belong to backbone and neck.
_ODAPI_HEADS = (
    "model/_box_predictor/",
    "model/_prediction_head_dict/",
    "model/_first_stage_box_predictor/",
    "model/_mask_rcnn_box_predictor/",
)
_AUTOML_PARTS = {
    "backbone": ("efficientnet-",),
    "neck": ("resample_p6/", "fpn_cells/"),
    "head": ("box_net/", "class_net/"),
}


@dataclass(frozen=True)
class StoredValue:
    """The stored value of one of our variables, converted to our layout.

    Attributes:
        keys: keys of the value; several if ours combines stored scalars.
    """

    keys: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], np.ndarray]


@dataclass(frozen=True)
class StoredWeights:
    """Weights from one source.

    Attributes:
        where: path, as given.
        values: by the path of our variable; absent variables are left out.
        shapes: by key, of all weights in the file.
        parts: parts of a detector that the file contains, whether they fit ours or not.
        class_names: meaning of the class channels, including the background; empty if the file does not name them.
    """

    where: str
    origin: Origin
    values: dict[str, StoredValue]
    shapes: dict[str, tuple[int, ...]]
    parts: frozenset[str]
    class_names: tuple[str, ...] = ()


def find_stored_weights(where: str, family: Family, network: keras.Model) -> StoredWeights:
    """Open the source that `train.fine_tune_checkpoint` names.

    Raises:
        InputError: if it does not exist, cannot be read, or is of an unknown kind.
    """
    paths = list(variables_by_path(network))
    where = _tidy(where)
    if is_web_address(where):
        place = fetch_checkpoint(where)
    else:
        check_path(where)
        place = where
    extractor = getattr(family.config, "feature_extractor", None)  # a detector may have its own backbone
    torch_file = where if where.endswith(TORCH_ENDINGS) else ""
    if where == IMAGENET and extractor is not None and is_efficientnet_lite(extractor.backbone):
        torch_file = find_packaged_weights(extractor.backbone)
    if torch_file:
        return _from_backbone(where, "torch", *read_torch_weights(torch_file, extractor), paths)
    if where == IMAGENET or where.endswith(KERAS_ENDINGS):
        arrays = read_keras_weights(where, extractor)
        return _from_backbone(where, "keras", arrays, {name: name for name in arrays}, paths)
    with access_errors_as_input_errors(place):
        path = find_in_folder(place)
    file = read_checkpoint(path)
    if not file.stores_objects:
        return _from_names(where, file, family, network)
    if any(key.startswith("network/backbone.S") for key in file.shapes):
        return _from_own(where, file, paths)
    keys_by_name = odapi_keys(family, network)
    keys = {path: key for path in paths if (key := keys_by_name.get(layer_variable(path)))}
    if any(key.startswith("model/_") for key in file.shapes):
        stored_keys = {path: stored for path, key in keys.items() if (stored := file.find_key(key))}
        has_head = any(key.startswith(_ODAPI_HEADS) for key in file.shapes)
        return _from_file(where, "odapi_detector", file, stored_keys, PARTS if has_head else ("backbone", "neck"))
    keys_by_name = odapi_classification_keys(family, network)
    backbone = _find_backbone(
        file, {path: keys_by_name[name] for path in paths if (name := layer_variable(path)) in keys_by_name}
    )
    if backbone:
        return _from_file(where, "odapi_backbone", file, backbone, ("backbone",))
    raise InputError(
        f"train.fine_tune_checkpoint: {where} is not a checkpoint of a detector or a backbone: it contains "
        f"{_roots(file.shapes)}; allowed: one of the TF2 detection zoo, of google/automl's EfficientDet, or of detloom."
    )


def foreign_names(family: Family, network: keras.Model) -> dict[str, tuple[str, ...]]:
    """Return, by path, the variable's names in checkpoints of the Object Detection API and of google/automl."""
    keys = odapi_keys(family, network)
    try:
        automl = family.automl_sources(network)
    except InputError:  # not one of google/automl's EfficientDets
        automl = {}
    names: dict[str, tuple[str, ...]] = {}
    for path in variables_by_path(network):
        name = layer_variable(path)
        ours = (keys[name].removesuffix(VALUE),) if name in keys else ()
        names[path] = (*ours, *(automl[name].names if name in automl else ()))
    return names


# --- location ---------------------------------------------------------------------------------------------------------


def _tidy(where: str) -> str:
    """Strip whitespace and slashes that a copied path may have at its ends.

    Raises:
        InputError: for a line break inside, which would break every message.
    """
    tidy = where.strip()
    if not tidy.isprintable():
        raise InputError(f"train.fine_tune_checkpoint: got {where!r}, allowed: a path of printable characters.")
    return tidy.rstrip("/") or tidy


def find_in_folder(where: str) -> str:
    """Return the checkpoint in the folder of a model, SavedModel or run; any other path is returned unchanged."""
    if not tf.io.gfile.isdir(where):
        return where
    folder = where
    for candidate in (
        f"{folder}/{WEIGHTS_FILE}",
        f"{folder}/{WEIGHTS_DIR}/{WEIGHTS_FILE}",
        os.path.join(os.path.dirname(folder), WEIGHTS_DIR, WEIGHTS_FILE),  # the given folder is Format-Serving
    ):
        if tf.io.gfile.exists(f"{candidate}.index"):
            return candidate
    entries = [entry.rstrip("/") for entry in tf.io.gfile.listdir(folder)]  # some file systems end folders with a slash
    versions = reversed(parse_versions(entries))
    for saved_model in (
        folder,
        f"{folder}/{detections.SERVING_FOLDER}",
        *(f"{folder}/{version}" for version in versions),
    ):
        if tf.io.gfile.exists(f"{saved_model}/{detections.SAVED_MODEL_FILE}"):
            return f"{saved_model}/{SAVED_MODEL_WEIGHTS}"
    return find_best_weights(folder) or folder


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
    """Read a detloom checkpoint, whose keys are escaped paths; use the averages if the run evaluated these."""
    roots = ["network"]
    if evaluates_averages(file.path):
        roots.insert(0, "averaged_weights")
    keys = {path: [f"{root}/{escape_name(path)}{VALUE}" for root in roots] for path in paths}
    stored_keys = {path: next((key for key in its_keys if key in file.shapes), "") for path, its_keys in keys.items()}
    stored_keys = {path: key for path, key in stored_keys.items() if key}
    parts = [part for part in PARTS if any(key.startswith(f"network/{part}.S") for key in file.shapes)]
    stored = _from_file(where, "own", file, stored_keys, parts, read_class_names(file.path))
    # A run's checkpoint also holds the run's state, and trained weights beside their averages.
    others = {key for path in stored_keys for key in keys[path]} - set(stored_keys.values())
    shapes = {key: shape for key, shape in stored.shapes.items() if key.startswith("network/") and key not in others}
    return replace(stored, shapes=shapes | {key: file.shapes[key] for key in stored_keys.values()})


def _find_backbone(file: CheckpointFile, keys: Mapping[str, str]) -> dict[str, str]:
    """Return the keys of the backbone below the root that has most of them; empty if none has any."""
    layers = {path: match[0] for path, key in keys.items() if (match := _LAYER.search(key))}
    best: dict[str, str] = {}
    for root in _BACKBONE_ROOTS:
        prefix = f"{root}/" if root else ""
        below_root = {
            path: key
            for path, layer in layers.items()
            if part_of(path) == "backbone" and (key := file.find_key(prefix + layer))
        }
        best = below_root if len(below_root) > len(best) else best
    return best


def _from_names(where: str, file: CheckpointFile, family: Family, network: keras.Model) -> StoredWeights:
    if not any(name.startswith("efficientnet-") for name in file.shapes):
        raise InputError(
            f"train.fine_tune_checkpoint: {where} stores weights by name, as TensorFlow 1 does; allowed: a checkpoint "
            "written by tf.train.Checkpoint, such as those of the TF2 detection zoo, or google/automl's EfficientDet."
        )
    sources = family.automl_sources(network)
    if not sources:
        raise InputError(
            f"train.fine_tune_checkpoint: {where} is an EfficientDet of google/automl, but the configuration's "
            "detector has no BiFPN; choose the matching EfficientDet."
        )
    arrays = automl_values(sources, file.read, set(file.shapes))
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


def _from_backbone(
    where: str, origin: Origin, arrays: Mapping[str, np.ndarray], names: Mapping[str, str], paths: list[str]
) -> StoredWeights:
    """Select the layers of our backbone.

    Args:
        arrays: all weights of the file, by their names.
        names: names in the file, by "layer/variable" of our backbone.
    """
    values = {}
    for path in paths:
        name = names.get(layer_variable(path)) if part_of(path) == "backbone" else None
        if name is not None:
            values[path] = _held((name,), arrays[name])
    if not values:
        raise InputError(
            f"train.fine_tune_checkpoint: {where} has no layer of this backbone; it contains {_roots(arrays)}."
        )
    shapes = {name: array.shape for name, array in arrays.items()}
    return StoredWeights(where, origin, values, shapes, frozenset({"backbone"}))


def _roots(keys: Mapping[str, object]) -> str:
    """List the names of the stored objects, two levels deep."""
    roots = sorted({"/".join(key.split("/")[:2]) for key in keys})
    return list_first(roots) or "no weights"


# --- google/automl ----------------------------------------------------------------------------------------------------


def automl_values(
    sources: dict[str, AutomlSource], read: Callable[[str], np.ndarray], stored: set[str]
) -> dict[str, np.ndarray]:
    """Return the value of each of our variables whose sources are all stored, by path; averages if they are stored.

    Args:
        read: returns the value of a name in the checkpoint.
    """
    values = {}
    for path, source in sources.items():
        if stored.issuperset(source.names):
            averages = [name + _MOVING_AVERAGE for name in source.names]
            names = averages if stored.issuperset(averages) else source.names
            values[path] = source.transform(*map(read, names))
    return values


def is_training_state(name: str) -> bool:
    """Return True for variables of the training state only: averages, optimizer slots, step counter."""
    return name in _COUNTERS or name.endswith((_MOVING_AVERAGE, *_SLOTS))
