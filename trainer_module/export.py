"""A trained detector as a SavedModel that serves: pictures, encoded bytes or tf.Examples in, detections out."""

import io
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image

from detloom.schemas import detections as names
from detloom.schemas import example_keys
from detloom.schemas.config import TrainEvalConfig
from detloom.schemas.label_map import write_label_map
from detloom.schemas.typed_dict import to_canonical_json
from detloom.trainer_module.checkpoints.own_checkpoint import weights_by_path
from detloom.trainer_module.detector import Detector
from detloom.trainer_module.preprocess import decode_image, network_hw, prepare_image

_LOGGER = logging.getLogger("detloom")
_TOLERANCE = 1e-4  # largest difference between the exported and the in-memory model that is rounding
_MIN_SHARE_FOUND_AGAIN = 0.98  # of 200 detections, room for two pairs that swap at suppression


class _Servable(tf.Module):
    """The network with preprocessing before it and post-processing behind it."""

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        # Tracked, so that the variables are saved, and under the keys of our checkpoints: training can start from them.
        self.network = weights_by_path(detector.network)
        self._detector = detector
        image_spec = tf.TensorSpec([*network_hw(detector.config.image_resizer), 3], tf.float32)
        self._prepared_spec = (image_spec, tf.TensorSpec([2], tf.int32))

    def from_images(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        prepared, true_hw = prepare_image(images, self._detector.config)
        return self._detector.detect(prepared, tf.tile(true_hw[tf.newaxis], [tf.shape(images)[0], 1]))

    def from_encoded(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        def prepare(encoded: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return prepare_image(decode_image(encoded), self._detector.config)

        return self._detector.detect(*tf.map_fn(prepare, image_bytes, fn_output_signature=self._prepared_spec))

    def from_examples(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        feature = tf.io.FixedLenFeature([], tf.string)
        parsed = tf.io.parse_example(examples, {example_keys.IMAGE_ENCODED: feature})
        return self.from_encoded(parsed[example_keys.IMAGE_ENCODED])

    def signatures(self) -> dict[str, Any]:
        kinds = {
            names.SIGNATURE_IMAGES: (self.from_images, tf.TensorSpec([None, None, None, 3], tf.uint8)),
            names.SIGNATURE_ENCODED: (self.from_encoded, tf.TensorSpec([None], tf.string)),
            names.SIGNATURE_EXAMPLES: (self.from_examples, tf.TensorSpec([None], tf.string)),
        }
        return {
            signature: tf.function(function).get_concrete_function(
                tf.TensorSpec(spec.shape, spec.dtype, name=names.SIGNATURE_INPUTS[signature])
            )
            for signature, (function, spec) in kinds.items()
        }


def export_saved_model(detector: Detector, config: TrainEvalConfig, model_dir: Path) -> None:
    """Write a SavedModel with the signatures and assets of `schemas/detections.py`, and call each signature once.

    Raises:
        RuntimeError: if a signature of the written model differs from the model in memory; nothing is left behind then.
    """
    servable = _Servable(detector)
    tf.saved_model.save(servable, str(model_dir), signatures=servable.signatures())
    assets = model_dir / "assets"
    assets.mkdir(exist_ok=True)
    write_label_map(assets / names.ASSET_LABEL_MAP, detector.label_map)
    (assets / names.ASSET_CONFIG).write_text(to_canonical_json(config), encoding="utf-8")
    try:
        _check_export(servable, model_dir)
    except BaseException:
        shutil.rmtree(model_dir, ignore_errors=True)
        raise
    _LOGGER.info("Exported to %s; every signature gives what the model in memory gives.", model_dir)


def _check_export(servable: _Servable, model_dir: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 97, 131, 3), np.uint8)
    expected = tf.function(servable.from_images)(tf.constant(images))
    encoded = [_encode_png(image) for image in images]
    inputs = {
        names.SIGNATURE_IMAGES: tf.constant(images),
        names.SIGNATURE_ENCODED: tf.constant(encoded),
        names.SIGNATURE_EXAMPLES: tf.constant([_make_example(image_bytes) for image_bytes in encoded]),
    }
    loaded = tf.saved_model.load(str(model_dir))
    for signature, value in inputs.items():
        outputs = loaded.signatures[signature](**{names.SIGNATURE_INPUTS[signature]: value})
        share = _share_found_again(_to_numpy(expected), _to_numpy(outputs))
        if share < _MIN_SHARE_FOUND_AGAIN:
            raise RuntimeError(
                f"{model_dir}: of the detections of the model in memory, signature {signature} gives {share:.1%}, "
                f"allowed: {_MIN_SHARE_FOUND_AGAIN:.0%}."
            )


def _to_numpy(outputs: dict[str, tf.Tensor]) -> dict[str, np.ndarray]:
    return {name: outputs[name].numpy() for name in names.OUTPUT_NAMES}


def _share_found_again(expected: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> float:
    """Share of detections with a partner of the same class, score and box on the other side, the worse of both ways.

    Rows are not compared by position: where two scores differ by less than rounding, either order is right, and one
    box more or less may survive suppression.
    """
    shares = [1.0]
    for i in range(len(expected[names.BOXES])):
        rows = []
        for side in (expected, found):
            count = int(side[names.NUM_DETECTIONS][i])
            columns = (side[names.BOXES][i], side[names.SCORES][i][:, None], side[names.CLASSES][i][:, None])
            rows.append(np.concatenate(columns, axis=-1)[:count])
        close = np.abs(rows[0][:, None] - rows[1][None]).max(axis=-1, initial=0.0) <= _TOLERANCE
        shares += [float(np.mean(close.any(axis=axis))) if close.shape[1 - axis] else 1.0 for axis in (0, 1)]
    return min(shares)


def _encode_png(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="PNG")
    return buffer.getvalue()


def _make_example(image_bytes: bytes) -> bytes:
    feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[image_bytes]))
    return tf.train.Example(
        features=tf.train.Features(feature={example_keys.IMAGE_ENCODED: feature})
    ).SerializeToString()
