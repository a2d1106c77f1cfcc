"""Export a trained detector as a SavedModel for serving: from images, encoded bytes or tf.Examples to detections."""

import logging
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts import example_keys
from detloom.schemas.contracts.ground_truth import IMAGE, TRUE_HW
from detloom.schemas.contracts.label_map import write_label_map
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.model.export_and_quantization import Export
from detloom.schemas.reading.text_file import write_text_file
from detloom.schemas.reading.typed_dict import to_canonical_json
from detloom.trainer_module.detectors.detector import Detector
from detloom.trainer_module.detectors.preprocess import decode_image
from detloom.trainer_module.evaluation.keypoint_metrics import measured_keypoints
from detloom.trainer_module.export.folded_batch_norm import fold_batch_norms
from detloom.trainer_module.export.serving_contract import format_contract
from detloom.trainer_module.files.strict_json import to_strict_json
from detloom.trainer_module.runtime.numerics import without_tf32
from detloom.trainer_module.weights.own_checkpoint import weights_by_path

_LOGGER = logging.getLogger("detloom")
_TOLERANCE = 1e-4  # largest difference between the exported model and the model in memory due to rounding
_MIN_MATCHED = 0.98  # share of matched detections: of 200, two pairs may swap at suppression


class _Servable(tf.Module):
    """Preprocessing, network with folded batch norms, and post-processing."""

    def __init__(self, detector: Detector, settings: Export) -> None:
        super().__init__()
        # Tracked under the keys of our checkpoints, so that the weights are saved and training can start from them.
        self.network = weights_by_path(detector.network)
        self._detector = replace(fold_batch_norms(detector), suppresses_on_host=True)
        self._settings = settings
        shared = {id(variable) for variable in detector.network.variables}
        variables = self._detector.network.variables
        self.folded_weights = [variable.value for variable in variables if id(variable) not in shared]
        image_spec = tf.TensorSpec([*detector.preprocessing.network_hw, 3], tf.float32)
        hw_spec = tf.TensorSpec([2], tf.int32)
        self._prepared_spec = (image_spec, hw_spec, hw_spec)
        # The signatures share one function, so that the network is traced, saved and loaded once. The lambda hides it
        # from tf.Module, which would save it as a function of its own.
        specs = tuple(tf.TensorSpec([None, *spec.shape], spec.dtype) for spec in self._prepared_spec)
        detect = tf.function(self._detect_prepared, input_signature=specs, autograph=False)
        self._detect: Callable[..., dict[str, tf.Tensor]] = lambda *prepared: detect(*prepared)

    def from_images(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        prepared, true_hw = self._detector.preprocessing.prepare(images)
        true_hw_B2, image_hw_B2 = (
            tf.tile(hw[tf.newaxis], [tf.shape(images)[0], 1]) for hw in (true_hw, tf.shape(images)[1:3])
        )
        return self._detect(prepared, true_hw_B2, image_hw_B2)

    def from_encoded(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        def prepare(encoded: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            image = decode_image(encoded)
            return (*self._detector.preprocessing.prepare(image), tf.shape(image)[:2])

        return self._detect(*tf.map_fn(prepare, image_bytes, fn_output_signature=self._prepared_spec))

    def from_examples(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        feature = tf.io.FixedLenFeature([], tf.string)
        parsed = tf.io.parse_example(examples, {example_keys.IMAGE_ENCODED: feature})
        return self.from_encoded(parsed[example_keys.IMAGE_ENCODED])

    def _detect_prepared(
        self, prepared: tf.Tensor, true_hw_B2: tf.Tensor, image_hw_B2: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        outputs = self._detector.detect(prepared, true_hw_B2)
        if self._settings.box_units == "relative":
            return outputs
        hw_B12 = tf.cast(image_hw_B2, tf.float32)[:, tf.newaxis]
        in_pixels = {**outputs, names.BOXES: outputs[names.BOXES] * tf.tile(hw_B12, [1, 1, 2])}
        if names.KEYPOINTS in outputs:
            in_pixels[names.KEYPOINTS] = outputs[names.KEYPOINTS] * hw_B12[:, tf.newaxis]
        return in_pixels

    def has_stable_outputs(self, images: tf.Tensor, detections: dict[str, np.ndarray]) -> bool:
        """Return whether outputs for uint8 images [B, H, W, 3] are finite and rounding does not change `detections`.

        TensorFlow optimizes the function by itself in another way than inside the graph that gave `detections`, so that
        it rounds differently.
        """
        prepared, true_hw = self._detector.preprocessing.prepare(images)
        batch = {IMAGE: prepared, TRUE_HW: tf.tile(true_hw[tf.newaxis], [len(images), 1])}
        outputs = tf.nest.flatten(self._detector.forward(batch, training=False))
        if not all(bool(tf.reduce_all(tf.math.is_finite(output))) for output in outputs):
            return False
        alone = self.to_relative(self.from_images(images), tuple(images.shape[1:3]))
        return share_matched(detections, alone) >= _MIN_MATCHED

    def to_relative(self, outputs: dict[str, tf.Tensor], image_hw: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Return the outputs of a signature for images of `image_hw`, with relative boxes and keypoints."""
        arrays = {name: value.numpy() for name, value in outputs.items()}
        if self._settings.box_units == "pixels":
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


def export_saved_model(
    detector: Detector, config: TrainEvalConfig, model_dir: Path, settings: Export | None = None
) -> None:
    """Write a SavedModel with signatures and assets, with folded batch norms, and call each signature once.

    See `schemas/contracts/detections.py`.

    Raises:
        RuntimeError: if a signature of the written model differs from the model in memory and the outputs of the latter
            are finite and do not depend on rounding; the model is then removed.
    """
    settings = settings or Export()
    servable = _Servable(detector, settings)
    assets = model_dir / "assets"
    try:
        tf.saved_model.save(servable, str(model_dir), signatures=servable.signatures())
        assets.mkdir(exist_ok=True)
        write_label_map(assets / names.ASSET_LABEL_MAP, detector.label_map)
        (assets / names.ASSET_CONFIG).write_text(to_canonical_json(config), encoding="utf-8")
        inputs = _make_inputs(detector.preprocessing.network_hw)
        with without_tf32():
            outputs = _check_export(servable, model_dir, inputs)
        keypoints = measured_keypoints(detector.family.keypoints, config.eval)
        contract = format_contract(detector.preprocessing, outputs, outputs[names.SCORES].shape[1], settings, keypoints)
        write_text_file(assets / names.ASSET_CONTRACT, to_strict_json(contract, indent=1) + "\n")
        _write_warm_up_requests(inputs, model_dir)
    except BaseException:
        shutil.rmtree(model_dir, ignore_errors=True)
        raise
    _LOGGER.info("Exported a SavedModel.")


def _make_inputs(network_hw: tuple[int, int]) -> dict[str, np.ndarray]:
    """Make the same two images for each signature. They do not have the network's size, so that resizing is checked."""
    height, width = network_hw
    small = np.random.default_rng(0).integers(0, 256, (2, 9, 13, 3), np.uint8)
    sides_wh = (width + width // 3, height + height // 5)
    images = [np.asarray(Image.fromarray(image).resize(sides_wh, Image.Resampling.BICUBIC)) for image in small]
    encoded = [tf.io.encode_png(image).numpy() for image in images]
    return {
        names.SIGNATURE_IMAGES: np.stack(images),
        names.SIGNATURE_ENCODED: np.array(encoded, object),
        names.SIGNATURE_EXAMPLES: np.array([_make_example(image_bytes) for image_bytes in encoded], object),
    }


def _check_export(servable: _Servable, model_dir: Path, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Raise RuntimeError if a signature differs from the model in memory; return the outputs of the latter."""
    images = inputs[names.SIGNATURE_IMAGES]
    expected = servable.to_relative(
        tf.function(servable.from_images, autograph=False)(tf.constant(images)), images.shape[1:3]
    )
    if not expected[names.NUM_DETECTIONS].any():
        _LOGGER.warning(
            "Export: the model detects nothing in the test images, so that the check is weak (score_threshold)."
        )
    loaded = tf.saved_model.load(str(model_dir))
    for signature, value in inputs.items():
        outputs = loaded.signatures[signature](**{names.SIGNATURE_INPUTS[signature]: tf.constant(value)})
        share = share_matched(expected, servable.to_relative(outputs, images.shape[1:3]))
        if share < _MIN_MATCHED and not servable.has_stable_outputs(tf.constant(images), expected):
            _LOGGER.warning(
                "Export: outputs of the network on test images are not finite, or so large that rounding changes the "
                "detections, because the training diverged; those of the written model cannot be compared with them."
            )
            return expected
        if share < _MIN_MATCHED:
            raise RuntimeError(
                f"{model_dir}: signature {signature} returns {share:.1%} of the detections of the model in memory, "
                f"allowed: {_MIN_MATCHED:.0%} or more."
            )
    _LOGGER.info("Export: the results of every signature equal those of the model in memory.")
    return expected


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


def _write_warm_up_requests(inputs: dict[str, np.ndarray], model_dir: Path) -> None:
    """Write a request per signature that TensorFlow Serving sends when it loads the model, so that no user waits.

    Source: tensorflow.org/tfx/serving/saved_model_warmup.
    """
    path = model_dir / names.WARM_UP_FILE
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, value in inputs.items():
            request = predict_pb2.PredictRequest()
            request.model_spec.signature_name = signature
            request.inputs[names.SIGNATURE_INPUTS[signature]].CopyFrom(tf.make_tensor_proto(value))
            log = prediction_log_pb2.PredictionLog(predict_log=prediction_log_pb2.PredictLog(request=request))
            writer.write(log.SerializeToString())


def _make_example(image_bytes: bytes) -> bytes:
    feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[image_bytes]))
    return tf.train.Example(
        features=tf.train.Features(feature={example_keys.IMAGE_ENCODED: feature})
    ).SerializeToString()
