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
from detloom.schemas.export_config import Export
from detloom.schemas.label_map import write_label_map
from detloom.schemas.text_file import write_text_file
from detloom.schemas.typed_dict import to_canonical_json
from detloom.trainer_module.checkpoints.own_checkpoint import weights_by_path
from detloom.trainer_module.detector import Detector
from detloom.trainer_module.preprocess import decode_image, network_hw, prepare_image
from detloom.trainer_module.serving_contract import format_contract
from detloom.trainer_module.strict_json import to_strict_json
from detloom.trainer_module.warm_up import write_warm_up_requests

_LOGGER = logging.getLogger("detloom")
_TOLERANCE = 1e-4  # largest difference between the exported and the in-memory model that is rounding
_MIN_SHARE_FOUND_AGAIN = 0.98  # of 200 detections, room for two pairs that swap at suppression


class _Servable(tf.Module):
    """The network with preprocessing before it and post-processing behind it."""

    def __init__(self, detector: Detector, settings: Export) -> None:
        super().__init__()
        # Tracked, so that the variables are saved, and under the keys of our checkpoints: training can start from them.
        self.network = weights_by_path(detector.network)
        self._detector, self._settings = detector, settings
        image_spec = tf.TensorSpec([*network_hw(detector.config.image_resizer), 3], tf.float32)
        self._prepared_spec = (image_spec, tf.TensorSpec([2], tf.int32), tf.TensorSpec([2], tf.int32))

    def from_images(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        prepared, true_hw = prepare_image(images, self._detector.config)
        true_hw_B2, image_hw_B2 = (
            tf.tile(hw[tf.newaxis], [tf.shape(images)[0], 1]) for hw in (true_hw, tf.shape(images)[1:3])
        )
        return self._answer(prepared, true_hw_B2, image_hw_B2)

    def from_encoded(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        def prepare(encoded: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            image = decode_image(encoded)
            return (*prepare_image(image, self._detector.config), tf.shape(image)[:2])

        return self._answer(*tf.map_fn(prepare, image_bytes, fn_output_signature=self._prepared_spec))

    def from_examples(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        feature = tf.io.FixedLenFeature([], tf.string)
        parsed = tf.io.parse_example(examples, {example_keys.IMAGE_ENCODED: feature})
        return self.from_encoded(parsed[example_keys.IMAGE_ENCODED])

    def _answer(self, prepared: tf.Tensor, true_hw_B2: tf.Tensor, image_hw_B2: tf.Tensor) -> dict[str, tf.Tensor]:
        outputs = self._detector.detect(prepared, true_hw_B2)
        if self._settings.box_units == "relative":
            return outputs
        sides_B14 = tf.cast(tf.tile(image_hw_B2, [1, 2]), tf.float32)[:, tf.newaxis]
        return {**outputs, names.BOXES: outputs[names.BOXES] * sides_B14}

    def to_relative(self, outputs: dict[str, tf.Tensor], image_hw: tuple[int, ...]) -> dict[str, np.ndarray]:
        """What a signature answered for pictures of `image_hw`, with relative boxes."""
        arrays = {name: outputs[name].numpy() for name in names.OUTPUT_NAMES}
        if self._settings.box_units == "pixels":
            arrays[names.BOXES] /= np.array(image_hw * 2, np.float32)
        return arrays

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


def export_saved_model(
    detector: Detector, config: TrainEvalConfig, model_dir: Path, settings: Export | None = None
) -> None:
    """Write a SavedModel with the signatures and assets of `schemas/detections.py`, and call each signature once.

    Raises:
        RuntimeError: if a signature of the written model differs from the model in memory; nothing is left behind then.
    """
    settings = settings or Export()
    servable = _Servable(detector, settings)
    assets = model_dir / "assets"
    try:
        tf.saved_model.save(servable, str(model_dir), signatures=servable.signatures())
        assets.mkdir(exist_ok=True)
        write_label_map(assets / names.ASSET_LABEL_MAP, detector.label_map)
        (assets / names.ASSET_CONFIG).write_text(to_canonical_json(config), encoding="utf-8")
        inputs = _make_inputs(network_hw(detector.config.image_resizer))
        max_detections = _check_export(servable, model_dir, inputs)
        contract = format_contract(detector.config, max_detections, settings)
        write_text_file(assets / names.ASSET_CONTRACT, to_strict_json(contract, indent=1) + "\n")
        write_warm_up_requests(inputs, model_dir)
    except BaseException:
        shutil.rmtree(model_dir, ignore_errors=True)
        raise
    _LOGGER.info("Exported a SavedModel; every signature gives what the model in memory gives.")


def _make_inputs(network_hw: tuple[int, int]) -> dict[str, np.ndarray]:
    """The same two pictures for each signature. Not of the network's size, so that resizing is checked as well."""
    height, width = network_hw
    small = np.random.default_rng(0).integers(0, 256, (2, 9, 13, 3), np.uint8)
    sides_wh = (width + width // 3, height + height // 5)
    images = [np.asarray(Image.fromarray(each).resize(sides_wh, Image.Resampling.BICUBIC)) for each in small]
    encoded = [_encode_png(image) for image in images]
    return {
        names.SIGNATURE_IMAGES: np.stack(images),
        names.SIGNATURE_ENCODED: np.array(encoded, object),
        names.SIGNATURE_EXAMPLES: np.array([_make_example(image_bytes) for image_bytes in encoded], object),
    }


def _check_export(servable: _Servable, model_dir: Path, inputs: dict[str, np.ndarray]) -> int:
    """Raise RuntimeError for a signature that differs; the number of rows of an answer."""
    images = inputs[names.SIGNATURE_IMAGES]
    expected = servable.to_relative(tf.function(servable.from_images)(tf.constant(images)), images.shape[1:3])
    if not expected[names.NUM_DETECTIONS].any():
        _LOGGER.warning(
            "Export: the model finds nothing in made pictures, so that little is compared (score_threshold)."
        )
    loaded = tf.saved_model.load(str(model_dir))
    for signature, value in inputs.items():
        outputs = loaded.signatures[signature](**{names.SIGNATURE_INPUTS[signature]: tf.constant(value)})
        share = _share_found_again(expected, servable.to_relative(outputs, images.shape[1:3]))
        if share < _MIN_SHARE_FOUND_AGAIN:
            raise RuntimeError(
                f"{model_dir}: of the detections of the model in memory, signature {signature} gives {share:.1%}, "
                f"allowed: {_MIN_SHARE_FOUND_AGAIN:.0%}."
            )
    return int(expected[names.SCORES].shape[1])


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
