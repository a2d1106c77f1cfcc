"""Run a TensorFlow Lite detector (`tflite_export.py`) on images of any size."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts.arrays import Array, Uint8Array
from detloom.schemas.contracts.label_map import LabelMap, parse_label_map
from detloom.schemas.errors import InputError
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.reading.typed_dict import from_json
from detloom.trainer_module.detectors.detector import Family
from detloom.trainer_module.detectors.families import family_of
from detloom.trainer_module.export.fixed_size_model import fit_image
from detloom.trainer_module.export.tflite_metadata import read_packed_files
from detloom.trainer_module.inference.encoded_image import EncodedImage
from detloom.trainer_module.inference.model_process import ModelInProcess
from detloom.trainer_module.inference.runtime import Rows, check_outputs, split_rows

_MAX_VALUES = 3 * 2**26  # of an input: 8192 x 8192 pixels


class TfliteRuntime:
    """A loaded TFLite model.

    The model has the signature `serving_default` with one input, uint8 or float32 [1, H, W, 3] with pixel values of 0
    to 255, and the outputs of `schemas/contracts/detections.py`, suppressed or raw. Images are resized and padded to
    H x W as the configuration inside the file requires; without a configuration, each side is resized separately.
    """

    def __init__(self, path: str) -> None:
        """Load the model and run it once, in a process of its own.

        Raises:
            InputError: with the file, if it is not such a model, or ends or blocks its process.
        """
        self._path = path
        try:
            with tf.io.gfile.GFile(path, "rb") as file:
                model_bytes = file.read()
            self._model = ModelInProcess("tflite", model_bytes)
        except (RuntimeError, tf.errors.OpError) as error:
            raise InputError(f"{path}: not a TFLite model ({str(error).splitlines()[0][:200]}).") from None
        signatures, inputs = self._model.description
        self._outputs = _check_signature(path, signatures)
        (self._input,) = signatures[names.SIGNATURE_IMAGES]["inputs"]
        shape, self._dtype = inputs[self._input]
        is_image = len(shape) == 4 and shape[0] == 1 and shape[3] == 3 and math.prod(shape) <= _MAX_VALUES
        if not is_image or self._dtype not in (np.uint8, np.float32):
            raise InputError(
                f"{path}: got an input of {np.dtype(self._dtype).name} {shape}, allowed: uint8 or float32 [1, H, W, 3]."
            )
        self._input_hw = (shape[1], shape[2])
        self._family, self._label_map = _read_settings(path, model_bytes)
        if self._family is not None and self._family.preprocessing.network_hw != self._input_hw:
            raise InputError(f"{path}: the configuration inside has another size than the input {shape}; export again.")
        if self._outputs == names.RAW_OUTPUT_NAMES and not (self._family and self._family.has_raw_outputs):
            raise InputError(
                f"{path}: raw outputs need the configuration and label map that detloom packs into the file."
            )
        self._run(np.zeros(shape, self._dtype))

    def detect(self, images: Sequence[EncodedImage]) -> list[Rows]:
        """See `Runtime`."""
        return [self._detect(image.rgb) for image in images]

    def _detect(self, image_rgb: Uint8Array) -> Rows:
        if self._family is not None:
            pixels, true_hw = fit_image(image_rgb, self._family.preprocessing)
        else:
            pixels, true_hw = tf.image.resize(image_rgb, self._input_hw).numpy(), self._input_hw
        if self._dtype is np.uint8:
            pixels = np.rint(pixels).clip(0, 255)
        outputs = self._run(pixels[np.newaxis].astype(self._dtype))
        image_share_hw = np.array(true_hw, np.float32) / np.array(self._input_hw, np.float32)
        if self._outputs == names.RAW_OUTPUT_NAMES:
            assert self._family is not None
            assert self._label_map is not None
            rows = self._family.select_raw(outputs, self._label_map.class_ids, image_share_hw)
        else:
            (rows,) = split_rows(outputs)
            if self._family is not None:
                is_kept = self._family.is_in_image(rows[names.BOXES], image_share_hw)
                rows = {name: value[is_kept] for name, value in rows.items()}
        return {**rows, names.BOXES: np.clip(rows[names.BOXES] / np.tile(image_share_hw, 2), 0, 1)}

    def _run(self, pixels_1HWC: Array) -> Rows:
        """Return the checked outputs."""
        try:
            outputs: Rows = self._model.run({self._input: pixels_1HWC})
            if self._outputs == names.RAW_OUTPUT_NAMES:
                num_classes = self._label_map.num_classes if self._label_map else 0
                check_outputs(outputs, names.RAW_OUTPUTS, {"B": 1, "K": num_classes})
            else:
                outputs[names.NUM_DETECTIONS] = outputs[names.NUM_DETECTIONS].reshape(-1)
                check_outputs(outputs, names.OUTPUTS, {"B": 1})
        except (RuntimeError, ValueError) as error:
            raise InputError(f"{self._path}: cannot be run ({str(error).splitlines()[0][:200]}).") from None
        return outputs


def _check_signature(path: str, signatures: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the outputs: the detections, or the raw outputs."""
    signature = signatures.get(names.SIGNATURE_IMAGES)
    if signature is not None and len(signature["inputs"]) == 1:
        for outputs in (names.OUTPUT_NAMES, names.RAW_OUTPUT_NAMES):
            if not set(outputs) - set(signature["outputs"]):
                return outputs
    raise InputError(
        f"{path}: got the signatures {signatures}, needed: '{names.SIGNATURE_IMAGES}' with one input and the outputs "
        f"{list(names.OUTPUT_NAMES)} or {list(names.RAW_OUTPUT_NAMES)}."
    )


def _read_settings(path: str, model_bytes: bytes) -> tuple[Family | None, LabelMap | None]:
    """Read the configuration and the label map inside the file; None if it has none."""
    try:
        files = read_packed_files(model_bytes)
        if names.ASSET_CONFIG not in files or names.ASSET_LABEL_MAP not in files:
            return None, None
        config = from_json(TrainEvalConfig, files[names.ASSET_CONFIG])
        return family_of(config.model), parse_label_map(files[names.ASSET_LABEL_MAP], where=names.ASSET_LABEL_MAP)
    except (InputError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: {error}; export the model again.") from None
