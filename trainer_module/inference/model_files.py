"""The files of an exported model that tell its classes, units and keypoints. Imports TensorFlow only for addresses."""

import json
from pathlib import Path
from typing import Any, Literal

from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts.label_map import LabelMap, parse_label_map
from detloom.schemas.contracts.runtime_names import FORM_SAVED_MODEL
from detloom.schemas.contracts.version_names import parse_versions
from detloom.schemas.errors import InputError
from detloom.trainer_module.detectors.detector import Keypoints

_MAX_BYTES = 1 << 26  # of label map, configuration and contract


def find_saved_model(model_dir: Path) -> Path:
    """Return the folder of `saved_model.pb`: `model_dir`, its `Format-Serving`, or its highest complete version."""
    if not model_dir.is_dir():
        raise InputError(f"{model_dir}: no such folder; pass an exported SavedModel or a folder of model versions.")
    versions = reversed(parse_versions(path.name for path in model_dir.iterdir()))
    for folder in (model_dir, model_dir / names.SERVING_FOLDER, *(model_dir / str(version) for version in versions)):
        if (folder / names.SAVED_MODEL_FILE).is_file():
            return folder
    raise InputError(f"{model_dir}: has neither {names.SAVED_MODEL_FILE} nor a numbered version folder with one.")


def read_exported_label_map(model_dir: str) -> LabelMap:
    """Read the label map in the assets of the SavedModel.

    Raises:
        InputError: if it is missing or unreadable.
    """
    path = f"{model_dir}/assets/{names.ASSET_LABEL_MAP}"
    try:
        text = read_file(path).decode("utf-8")
    except (OSError, UnicodeDecodeError):
        raise InputError(f"{path}: the model's label map cannot be read; is this an exported detector?") from None
    return parse_label_map(text, where=path)


def read_unknown_classes(model_dir: str) -> Literal["refuse", "drop"]:
    """Return `train_input.unknown_classes` of the model's configuration; "refuse" if it has none."""
    try:
        config = json.loads(read_file(f"{model_dir}/assets/{names.ASSET_CONFIG}"))
        is_dropped = config["train_input"]["unknown_classes"] == "drop"
    except (OSError, ValueError, KeyError, TypeError):
        return "refuse"
    return "drop" if is_dropped else "refuse"


def read_evaluated_forms(model_dir: str) -> tuple[str, ...] | None:
    """Return the forms of a pushed version that its evaluation covered; None if no evaluation is recorded."""
    try:
        blessing = json.loads(read_file(f"{model_dir}/{names.MANIFEST_FILE}"))["push"]["blessing"]
        return tuple(blessing.get("forms", (FORM_SAVED_MODEL,))) if blessing else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def read_keypoints(model_dir: str) -> Keypoints | None:
    """Return the keypoints in the contract of a model; None if it has none.

    Raises:
        InputError: if the contract cannot be read.
    """
    written = _read_contract(model_dir).get("keypoints")
    if written is None:
        return None
    try:
        sigmas = tuple(float(sigma) for sigma in written["sigmas"])
        return Keypoints(str(written["class_name"]), tuple(map(str, written["names"])), sigmas)
    except (TypeError, KeyError, ValueError):
        raise InputError(
            f"{model_dir}: the keypoints in its contract cannot be read; export the model again."
        ) from None


def has_pixel_boxes(model_dir: str) -> bool:
    """Return True if boxes are in pixels of the image instead of relative to it."""
    return _read_contract(model_dir).get("box_units") == "pixels"


def _read_contract(model_dir: str) -> dict[str, Any]:
    """Read the contract in the assets of the SavedModel; {} for models that have none."""
    path = f"{model_dir}/assets/{names.ASSET_CONTRACT}"
    try:
        contract = json.loads(read_file(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError):
        contract = None
    if not isinstance(contract, dict):
        raise InputError(f"{path}: the model's contract cannot be read; export the model again.")
    return contract


def read_file(path: str, max_bytes: int = _MAX_BYTES) -> bytes:
    """Return the content of a local file, or of one at an address.

    Raises:
        OSError: it cannot be read, or has more than `max_bytes`.
    """
    content = _read_start(path, max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(f"it has more than {max_bytes} bytes")
    return content


def _read_start(path: str, num_bytes: int) -> bytes:
    if "://" not in path:
        with open(path, "rb") as local:
            return local.read(num_bytes)
    import tensorflow as tf

    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            content: bytes = file.read(num_bytes)
    except tf.errors.NotFoundError as error:
        raise FileNotFoundError(error.message) from None
    except tf.errors.OpError as error:
        raise OSError(error.message) from None
    return content
