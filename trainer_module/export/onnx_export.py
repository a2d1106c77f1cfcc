"""Export a trained detector as an ONNX file: from images to detections, as the SavedModel, or to its raw outputs."""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import tensorflow as tf

from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts.label_map import format_label_map
from detloom.schemas.reading.replace_when_done import replace_when_done
from detloom.trainer_module.export.fixed_size_model import FixedSizeModel
from detloom.trainer_module.export.onnx_graph import convert_to_onnx
from detloom.trainer_module.export.onnx_operations import HANDLERS
from detloom.trainer_module.export.servable import Servable, detect_images
from detloom.trainer_module.runtime.numerics import without_tf32

_TOLERANCE = 1e-3  # of raw outputs, relative and absolute; runtimes sum in another order
_INPUT = names.SIGNATURE_INPUTS[names.SIGNATURE_IMAGES]
_LOGGER = logging.getLogger("detloom")


def export_onnx(servable: Servable, images: np.ndarray, expected: dict[str, np.ndarray], path: Path) -> None:
    """Write an ONNX file atomically, and run it once.

    Args:
        images: uint8 [B, H, W, 3].
        expected: detections of the model in memory in these images, with relative boxes.

    Raises:
        InputError: if the detector cannot be converted.
        RuntimeError: if the results of ONNX Runtime differ from those of the model in memory.
    """
    if servable.settings.onnx_outputs == "raw":
        raw = FixedSizeModel(servable.detector, raw=True, max_detections=100, batch_size=None)
        serialized = _serialize(raw.serve.get_concrete_function(), servable)
        is_compared = _compare_raw(load_session(serialized), raw, path)
    else:
        serialized = _convert(servable)
        is_compared = servable.check(str(path), images, expected, run(load_session(serialized), images))
    with replace_when_done(path) as partial:
        partial.write_bytes(serialized)
    compared = "the results of ONNX Runtime equal those of the model in memory" if is_compared else "not compared"
    _LOGGER.info("ONNX: %.2f MB; %s.", path.stat().st_size / 1e6, compared)


def _convert(servable: Servable) -> bytes:
    detector = replace(servable.detector, suppresses_on_host=False)

    def detect(images: tf.Tensor) -> dict[str, tf.Tensor]:
        return detect_images(detector, servable.settings, images)

    spec = tf.TensorSpec([None, None, None, 3], tf.uint8)
    return _serialize(tf.function(detect, autograph=False).get_concrete_function(spec), servable)


def _serialize(function: tf.types.experimental.ConcreteFunction, servable: Servable) -> bytes:
    model = convert_to_onnx(function, _INPUT, HANDLERS)
    model.metadata_props.add(key=names.ASSET_LABEL_MAP, value=format_label_map(servable.detector.label_map))
    serialized: bytes = model.SerializeToString(deterministic=True)
    return serialized


def load_session(serialized: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    return onnxruntime.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])


def run(session: onnxruntime.InferenceSession, images: np.ndarray) -> dict[str, np.ndarray]:
    """Return the outputs by name."""
    outputs = [output.name for output in session.get_outputs()]
    return dict(zip(outputs, session.run(outputs, {_INPUT: images}), strict=True))


def _compare_raw(session: onnxruntime.InferenceSession, model: FixedSizeModel, path: Path) -> bool:
    """Compare the outputs for two random images of the network's size; False if one is not finite."""
    (spec,) = model.serve.input_signature
    images = np.random.default_rng(0).uniform(0, 255, [2, *spec.shape[1:]]).astype(np.float32)
    found = run(session, images)
    with without_tf32():
        expected = {name: value.numpy() for name, value in model.serve(tf.constant(images)).items()}
    for name, value in expected.items():
        if not np.isfinite(value).all():
            _LOGGER.warning("ONNX: %s is not finite, because the training diverged, and is not compared.", name)
            return False
        if not np.allclose(found[name], value, rtol=_TOLERANCE, atol=_TOLERANCE):
            worst = np.abs(found[name] - value).max()
            raise RuntimeError(
                f"{path}: {name} differs from the model in memory by {worst:g}, allowed: {_TOLERANCE:g}; export the "
                "SavedModel only (export.onnx: false), and report it."
            )
    return True
