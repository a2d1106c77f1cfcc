"""An exported detector as functions: from images, encoded bytes or tf.Examples to detections."""

import functools
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts import example_keys
from detloom.schemas.contracts.ground_truth import IMAGE, TRUE_HW
from detloom.schemas.model.export_and_quantization import Export
from detloom.trainer_module.detectors.detector import Detector
from detloom.trainer_module.detectors.preprocess import decode_image
from detloom.trainer_module.export.folded_batch_norm import fold_batch_norms
from detloom.trainer_module.weights.own_checkpoint import weights_by_path

_LOGGER = logging.getLogger("detloom")
_TOLERANCE = 1e-4  # largest difference between an exported model and the model in memory due to rounding
_NOISE = 1e-5  # of the input, relative; its effect is about that of rounding in all layers
_MIN_MATCHED = 0.98  # share of matched detections: of 200, two pairs may swap at suppression


class Servable(tf.Module):
    """Preprocessing, network with folded batch norms, and post-processing."""

    def __init__(self, detector: Detector, settings: Export) -> None:
        super().__init__()
        # Tracked under the keys of our checkpoints, so that the weights are saved and training can start from them.
        self.network = weights_by_path(detector.network)
        self.detector = replace(fold_batch_norms(detector), suppresses_on_host=True)
        self.settings = settings
        shared = {id(variable) for variable in detector.network.variables}
        variables = self.detector.network.variables
        self.folded_weights = [variable.value for variable in variables if id(variable) not in shared]
        image_spec = tf.TensorSpec([*detector.preprocessing.network_hw, 3], tf.float32)
        hw_spec = tf.TensorSpec([2], tf.int32)
        self._prepared_spec = (image_spec, hw_spec, hw_spec)
        # The signatures share one function, so that the network is traced, saved and loaded once. The lambda hides it
        # from tf.Module, which would save it as a function of its own.
        specs = tuple(tf.TensorSpec([None, *spec.shape], spec.dtype) for spec in self._prepared_spec)
        detect_batch = functools.partial(_detect, self.detector, settings)
        detect = tf.function(detect_batch, input_signature=specs, autograph=False)
        self._detect: Callable[..., dict[str, tf.Tensor]] = lambda *prepared: detect(*prepared)

    def from_images(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._detect(*_prepare(self.detector, images))

    def from_encoded(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        def prepare(encoded: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            image = decode_image(encoded)
            return (*self.detector.preprocessing.prepare(image), tf.shape(image)[:2])

        return self._detect(*tf.map_fn(prepare, image_bytes, fn_output_signature=self._prepared_spec))

    def from_examples(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        feature = tf.io.FixedLenFeature([], tf.string)
        parsed = tf.io.parse_example(examples, {example_keys.IMAGE_ENCODED: feature})
        return self.from_encoded(parsed[example_keys.IMAGE_ENCODED])

    def check(self, what: str, images: np.ndarray, expected: dict[str, np.ndarray], found: dict[str, Any]) -> bool:
        """Compare the outputs of a written model for uint8 images [B, H, W, 3] with those of the model in memory.

        Returns:
            False, with a warning, if they cannot be compared: the training diverged, or has hardly begun.

        Raises:
            RuntimeError: with `what`, if they differ.
        """
        share = share_matched(expected, self.to_relative(found, images.shape[1:3]))
        if share >= _MIN_MATCHED:
            return True
        if self._has_stable_outputs(tf.constant(images), expected):
            raise RuntimeError(
                f"{what} returns {share:.1%} of the detections of the model in memory, allowed: {_MIN_MATCHED:.0%} or "
                "more."
            )
        _LOGGER.warning(
            "Export: outputs of the network on test images are not finite, or rounding changes the detections, because "
            "the training diverged or has hardly begun; those of the written model cannot be compared with them."
        )
        return False

    def _has_stable_outputs(self, images: tf.Tensor, detections: dict[str, np.ndarray]) -> bool:
        """Return whether outputs for uint8 images [B, H, W, 3] are finite and rounding does not change `detections`.

        TensorFlow optimizes the function by itself in another way than inside the graph that gave `detections`, so that
        it rounds differently. Other runtimes round differently in each layer, as after a small change of the input: of
        a detector that was hardly trained, many scores nearly tie.
        """
        prepared, true_hw_B2, image_hw_B2 = _prepare(self.detector, images)
        batch = {IMAGE: prepared, TRUE_HW: true_hw_B2}
        outputs = tf.nest.flatten(self.detector.forward(batch, training=False))
        if not all(np.isfinite(output.numpy()).all() for output in outputs):
            return False
        noise = np.random.default_rng(0).normal(1, _NOISE, prepared.shape).astype(np.float32)
        rounded = (self.from_images(images), self._detect(prepared * noise, true_hw_B2, image_hw_B2))
        found = (self.to_relative(outputs, tuple(images.shape[1:3])) for outputs in rounded)
        return all(share_matched(detections, each) >= _MIN_MATCHED for each in found)

    def to_relative(self, outputs: dict[str, tf.Tensor], image_hw: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Return the outputs of a signature for images of `image_hw`, with relative boxes and keypoints."""
        arrays = {name: np.array(value) for name, value in outputs.items()}
        if self.settings.box_units == "pixels":
            arrays[names.BOXES] /= np.array(image_hw * 2, np.float32)
            if names.KEYPOINTS in arrays:
                arrays[names.KEYPOINTS] /= np.array(image_hw, np.float32)
        return arrays

    def signatures(self) -> dict[str, Any]:
        kinds = {
            names.SIGNATURE_IMAGES: (self.from_images, tf.TensorSpec([None, None, None, 3], tf.uint8)),
            names.SIGNATURE_ENCODED: (self.from_encoded, tf.TensorSpec([None], tf.string)),
            names.SIGNATURE_EXAMPLES: (self.from_examples, tf.TensorSpec([None], tf.string)),
        }
        return {
            signature: tf.function(function, autograph=False).get_concrete_function(
                tf.TensorSpec(spec.shape, spec.dtype, name=names.SIGNATURE_INPUTS[signature])
            )
            for signature, (function, spec) in kinds.items()
        }


def detect_images(detector: Detector, settings: Export, images: tf.Tensor) -> dict[str, tf.Tensor]:
    """Detect objects in images of one size and any numeric type, [B, H, W, 3], 0 to 255."""
    return _detect(detector, settings, *_prepare(detector, images))


def _prepare(detector: Detector, images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the input of the network, and for each image the rows and columns of it that are image, and its size."""
    prepared, true_hw = detector.preprocessing.prepare(images)
    num_images = tf.shape(images)[0]
    return (prepared, *(tf.tile(hw[tf.newaxis], [num_images, 1]) for hw in (true_hw, tf.shape(images)[1:3])))


def _detect(
    detector: Detector, settings: Export, prepared: tf.Tensor, true_hw_B2: tf.Tensor, image_hw_B2: tf.Tensor
) -> dict[str, tf.Tensor]:
    outputs = detector.detect(prepared, true_hw_B2)
    if settings.box_units == "relative":
        return outputs
    hw_B12 = tf.cast(image_hw_B2, tf.float32)[:, tf.newaxis]
    in_pixels = {**outputs, names.BOXES: outputs[names.BOXES] * tf.tile(hw_B12, [1, 1, 2])}
    if names.KEYPOINTS in outputs:
        in_pixels[names.KEYPOINTS] = outputs[names.KEYPOINTS] * hw_B12[:, tf.newaxis]
    return in_pixels


def share_matched(expected: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> float:
    """Return the share of detections that have an equal detection in the other model, the lower of both directions.

    Two detections are equal if no output differs by more than rounding. Rows are not compared by position: if
    scores differ only by rounding, any order is correct, and suppression may keep another box.
    """
    shares = [1.0]
    for i, (num_expected, num_found) in enumerate(
        zip(expected[names.NUM_DETECTIONS], found[names.NUM_DETECTIONS], strict=True)
    ):
        is_close = np.ones([int(num_expected), int(num_found)], bool)
        for name in set(expected) - {names.NUM_DETECTIONS}:
            rows = (side[name][i, : int(num)] for side, num in ((expected, num_expected), (found, num_found)))
            one, other = (row.reshape(len(row), math.prod(row.shape[1:])) for row in rows)
            is_close &= np.abs(one[:, None] - other[None]).max(axis=-1, initial=0.0) <= _TOLERANCE
        shares += [float(np.mean(is_close.any(axis=axis))) if is_close.shape[1 - axis] else 1.0 for axis in (0, 1)]
    return min(shares)
