"""The contract of an exported model: its inputs and outputs as JSON, for callers without detloom."""

import platform
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from detloom import __version__
from detloom.schemas.contracts import detections as names
from detloom.schemas.model.export_and_quantization import Export
from detloom.schemas.model.network import FixedShapeResizer
from detloom.trainer_module.detectors.detector import Keypoints
from detloom.trainer_module.detectors.preprocess import Preprocessing

_INPUTS: dict[str, dict[str, Any]] = {
    names.SIGNATURE_IMAGES: {"dtype": "uint8", "shape": ["B", "H", "W", 3], "is": "RGB images of one size, 0 to 255"},
    names.SIGNATURE_ENCODED: {"dtype": "string", "shape": ["B"], "is": "the bytes of JPEG or PNG files, of any sizes"},
    names.SIGNATURE_EXAMPLES: {"dtype": "string", "shape": ["B"], "is": "serialized tf.Examples with image/encoded"},
}
_BOX_UNITS = {"relative": "0 to 1, of the image that was given", "pixels": "pixels of the image that was given"}


def format_contract(
    preprocessing: Preprocessing,
    outputs: Iterable[str],
    max_detections: int,
    settings: Export,
    keypoints: Keypoints | None = None,
) -> dict[str, Any]:
    """Return the contract as plain JSON values. It contains no time, because equal files identify a model.

    Args:
        outputs: names of the outputs of the signatures.
        max_detections: number of rows of each output.
        keypoints: of `measured_keypoints`, for a detector with keypoints.
    """
    contract: dict[str, Any] = {
        "signatures": {
            signature: {"input": {"name": names.SIGNATURE_INPUTS[signature], **facts}}
            for signature, facts in _INPUTS.items()
        },
        "outputs": {
            name: {
                "dtype": output.dtype,
                "shape": [max_detections if size == "M" else size for size in output.shape],
                "is": output.meaning.format(box_units=_BOX_UNITS[settings.box_units]),
            }
            for name, output in names.OUTPUTS.items()
            if name in outputs
        },
        "box_units": settings.box_units,
        "network_input": describe_network_input(preprocessing),
        "versions": describe_versions(),
    }
    if keypoints is not None:
        contract["keypoints"] = {
            **keypoints._asdict(),
            "names": list(keypoints.names),
            "sigmas": list(keypoints.sigmas),
        }
    return contract


def describe_network_input(preprocessing: Preprocessing) -> dict[str, Any]:
    """Describe the conversion of an image to the network input, which callers of TFLite and ONNX files have to do.

    Sides are resized to `height` and `width`, or with `keep_aspect_ratio` as far as both fit. The rest, below and to
    the right, gets the color `padding_rgb`.
    """
    height, width = preprocessing.network_hw
    return {
        "height": height,
        "width": width,
        "keep_aspect_ratio": not isinstance(preprocessing.resizer, FixedShapeResizer),
        "padding_rgb": preprocessing.padding_rgb().tolist(),
        "resize_method": preprocessing.resizer.resize_method,
        "half_pixel_centers": preprocessing.resizer.half_pixel_centers,
    }


def describe_versions() -> dict[str, str]:
    """Return the versions of the packages that write the model."""
    return {
        "detloom": __version__,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
