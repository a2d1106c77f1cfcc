"""Export a trained detector as a SavedModel for serving: from images, encoded bytes or tf.Examples to detections."""

import logging
import shutil
from pathlib import Path

import numpy as np
import tensorflow as tf
from PIL import Image
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts import example_keys
from detloom.schemas.contracts.label_map import write_label_map
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.model.export_and_quantization import Export
from detloom.schemas.reading.text_file import write_text_file
from detloom.schemas.reading.typed_dict import to_canonical_json
from detloom.trainer_module.detectors.detector import Detector
from detloom.trainer_module.evaluation.keypoint_metrics import measured_keypoints
from detloom.trainer_module.export.onnx_export import export_onnx
from detloom.trainer_module.export.servable import Servable
from detloom.trainer_module.export.serving_contract import format_contract
from detloom.trainer_module.files.strict_json import to_strict_json
from detloom.trainer_module.runtime.numerics import without_tf32

_LOGGER = logging.getLogger("detloom")


def export_saved_model(
    detector: Detector, config: TrainEvalConfig, model_dir: Path, settings: Export | None = None
) -> None:
    """Write a SavedModel with signatures and assets, with folded batch norms, and call each signature once.

    See `schemas/contracts/detections.py`. With `export.onnx`, its folder gets `model.onnx` too.

    Raises:
        RuntimeError: if a signature of the written model differs from the model in memory and the outputs of the latter
            are finite and do not depend on rounding; the model is then removed.
    """
    settings = settings or Export()
    servable = Servable(detector, settings)
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
        if settings.onnx:
            export_onnx(servable, inputs[names.SIGNATURE_IMAGES], outputs, model_dir / names.ONNX_FILE)
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


def _check_export(servable: Servable, model_dir: Path, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
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
        if not servable.check(f"{model_dir}: signature {signature}", images, expected, outputs):
            return expected
    _LOGGER.info("Export: the results of every signature equal those of the model in memory.")
    return expected


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
