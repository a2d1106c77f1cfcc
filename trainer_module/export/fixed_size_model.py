"""Models whose input has the size of the network: TensorFlow Lite and ONNX files do not resize images."""

import keras
import numpy as np
import tensorflow as tf

from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts.arrays import Float32Array, Uint8Array
from detloom.schemas.contracts.ground_truth import IMAGE, KEYPOINTS, MASKS
from detloom.schemas.errors import InputError
from detloom.trainer_module.detectors.detector import Detector, Family
from detloom.trainer_module.detectors.preprocess import Preprocessing, resize_image
from detloom.trainer_module.export.folded_batch_norm import fold_batch_norms

_INPUT = names.SIGNATURE_INPUTS[names.SIGNATURE_IMAGES]


def check_fixed_size(family: Family) -> None:
    """Raise InputError for a detector whose masks or keypoints a TensorFlow Lite or ONNX file would lose."""
    columns = family.ground_truth_columns
    lost = [noun for column, noun in ((MASKS, "masks"), (KEYPOINTS, "keypoints")) if column in columns]
    if lost:
        raise InputError(
            f"export: a detector with {' and '.join(lost)} cannot be exported to TensorFlow Lite, or to ONNX with raw "
            "outputs; use the SavedModel."
        )


class FixedSizeModel(tf.Module):
    """Normalization, network and post-processing; `serve` is a function of images of the network's size.

    Input: float32 [B, H, W, 3], colors of 0 to 255. Outputs: those of `schemas/contracts/detections.py`, or the raw
    ones. Boxes are relative to the input, including its padding.
    """

    def __init__(self, detector: Detector, *, raw: bool, max_detections: int, batch_size: int | None = 1) -> None:
        """Copy the current weights of the detector.

        Args:
            raw: see `Detector.fixed_size_outputs`.
            batch_size: 1 unless `raw`; None is any.

        Raises:
            InputError: if the detector has masks or keypoints.
        """
        super().__init__()
        check_fixed_size(detector.family)
        self._detector, self._raw, self._max_detections = fold_batch_norms(detector), raw, max_detections
        # As constants: the converter of TensorFlow 2.16 cannot read the variables of Keras 3.
        self._weights = [(variable, variable.numpy()) for variable in self._detector.network.variables]
        spec = tf.TensorSpec([batch_size, *detector.preprocessing.network_hw, 3], tf.float32, name=_INPUT)
        self.serve = tf.function(self._serve, input_signature=[spec], autograph=False)

    def _serve(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        prepared = self._detector.preprocessing.normalize(images)
        with keras.StatelessScope(self._weights):
            outputs = self._detector.forward({IMAGE: prepared}, training=False)
        return self._detector.fixed_size_outputs(outputs, raw=self._raw, max_detections=self._max_detections)


def fit_image(image_rgb: Uint8Array, preprocessing: Preprocessing) -> tuple[Float32Array, tuple[int, int]]:
    """Resize and pad an image [H, W, 3] to the input of a fixed-size model.

    This is `Preprocessing.prepare` without the normalization, which the model does itself.

    Returns:
        float32, 0 to 255, and its rows and columns that are image.
    """
    height, width = preprocessing.network_hw
    resized = resize_image(tf.constant(image_rgb), preprocessing.resizer).numpy().clip(0, 255)
    rows, columns = resized.shape[:2]
    fitted = np.broadcast_to(preprocessing.padding_rgb(), (height, width, 3)).copy()
    fitted[:rows, :columns] = resized
    return fitted, (rows, columns)
