"""What an exported model takes and answers, as JSON that travels with it: for whoever calls it without detloom."""

import platform
from datetime import datetime, timezone
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from detloom import __version__
from detloom.schemas import detections as names
from detloom.schemas.center_net_config import CenterNet
from detloom.schemas.config import Model
from detloom.schemas.export_config import Export
from detloom.schemas.network_config import FixedShapeResizer
from detloom.trainer_module.preprocess import network_hw, normalize_image

_INPUTS: dict[str, dict[str, Any]] = {
    names.SIGNATURE_IMAGES: {"dtype": "uint8", "shape": ["B", "H", "W", 3], "is": "RGB pictures of one size, 0 to 255"},
    names.SIGNATURE_ENCODED: {"dtype": "string", "shape": ["B"], "is": "the bytes of JPEG or PNG files, of any sizes"},
    names.SIGNATURE_EXAMPLES: {"dtype": "string", "shape": ["B"], "is": "serialized tf.Examples with image/encoded"},
}
_BOX_UNITS = {"relative": "0 to 1, of the picture that was given", "pixels": "pixels of the picture that was given"}


def format_contract(model: Model, max_detections: int, settings: Export) -> dict[str, Any]:
    """Plain JSON values.

    Args:
        max_detections: rows of each answer.
    """
    rows = ["B", max_detections]
    return {
        "signatures": {
            signature: {"input": {"name": names.SIGNATURE_INPUTS[signature], **facts}}
            for signature, facts in _INPUTS.items()
        },
        "outputs": {
            names.BOXES: {
                "dtype": "float32",
                "shape": [*rows, 4],
                "is": f"ymin, xmin, ymax, xmax, {_BOX_UNITS[settings.box_units]}",
            },
            names.SCORES: {"dtype": "float32", "shape": rows, "is": "0 to 1, the highest first"},
            names.CLASSES: {"dtype": "float32", "shape": rows, "is": f"ids of {names.ASSET_LABEL_MAP}; 0 in padding"},
            names.NUM_DETECTIONS: {"dtype": "float32", "shape": ["B"], "is": "rows that are not padding"},
        },
        "box_units": settings.box_units,
        "network_input": describe_network_input(model),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": describe_versions(),
    }


def describe_network_input(model: Model) -> dict[str, Any]:
    """How a picture becomes what the network takes. The SavedModel does it itself, callers of TFLite files have to.

    Sides are resized to `height` and `width`, or, with `keep_aspect_ratio`, as far as both fit; what is missing below
    and to the right has the colour `padding_rgb`.
    """
    resizer = model.image_resizer
    height, width = network_hw(resizer)
    return {
        "height": height,
        "width": width,
        "keep_aspect_ratio": not isinstance(resizer, FixedShapeResizer),
        "padding_rgb": padding_rgb(model).tolist(),
        "resize_method": resizer.resize_method,
        "half_pixel_centers": resizer.half_pixel_centers,
    }


def padding_rgb(model: Model) -> np.ndarray:
    """The colour that padding would have in a picture of 0 to 255, float32 [3].

    Padding is 0 in the network's units, or what the resizer names in those units; for CenterNet it is a colour.
    """
    colour = getattr(model.image_resizer, "per_channel_pad_value", None) or (0.0,) * 3
    if isinstance(model, CenterNet):
        return np.array(colour, np.float32)
    # Normalization is affine in each channel.
    at_black, at_white = (normalize_image(tf.fill([3], value), model).numpy() for value in (0.0, 255.0))
    return ((np.array(colour) - at_black) / (at_white - at_black) * 255).astype(np.float32)


def describe_versions() -> dict[str, str]:
    """Of what the model was written with."""
    return {
        "detloom": __version__,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
