"""Run a TensorFlow Lite detector (`tflite_export.py`) on the examples that its SavedModel is evaluated on."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from detloom.schemas import detections as names
from detloom.schemas import example_keys as keys
from detloom.schemas.center_net_config import CenterNet
from detloom.schemas.config import Model, TrainEvalConfig
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap, parse_label_map
from detloom.schemas.model_config import BatchNonMaxSuppression, Ssd
from detloom.schemas.typed_dict import from_json
from detloom.trainer_module.draw import decode_image_rgb
from detloom.trainer_module.fit_picture import fit_picture
from detloom.trainer_module.nms import Selection, select_boxes
from detloom.trainer_module.preprocess import network_hw
from detloom.trainer_module.tflite_metadata import read_packed_files

Rows = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.int64]]


class TfliteDetector:
    """Call it with serialized tf.Examples, get a list of (boxes, scores, class ids) back, as from `LoadedSignature`.

    The model has the signature `serving_default` with one input, uint8 or float32 [1, H, W, 3] with pixel values from 0
    to 255, and the outputs of `schemas/detections.py`, suppressed or raw. Pictures are fitted into H x W as the
    configuration inside the file says; without one, each side is resized by its own factor.
    """

    def __init__(self, path: str) -> None:
        """Load the model.

        Raises:
            InputError: naming the file, for what is not such a model.
        """
        self._path = path
        try:
            with tf.io.gfile.GFile(path, "rb") as file:
                model_bytes = file.read()
            interpreter = tf.lite.Interpreter(model_content=model_bytes, num_threads=1)
            signatures = interpreter.get_signature_list()
        except (ValueError, RuntimeError, tf.errors.OpError) as error:
            raise InputError(f"{path}: is no TFLite model ({str(error).splitlines()[0][:200]}).") from None
        self._outputs = _check_signature(path, signatures)
        (self._input,) = signatures[names.SIGNATURE_IMAGES]["inputs"]
        self._interpreter = interpreter  # kept: the runner does not own it
        self._run = interpreter.get_signature_runner(names.SIGNATURE_IMAGES)
        details = self._run.get_input_details()[self._input]
        shape, self._dtype = details["shape"].tolist(), details["dtype"]
        if len(shape) != 4 or shape[0] != 1 or shape[3] != 3 or self._dtype not in (np.uint8, np.float32):
            raise InputError(
                f"{path}: got an input of {np.dtype(self._dtype).name} {shape}, allowed: uint8 or float32 [1, H, W, 3]."
            )
        self._input_hw = (shape[1], shape[2])
        self._config, self._label_map = _read_settings(path, model_bytes)
        if self._config is not None and network_hw(self._config.model.image_resizer) != self._input_hw:
            raise InputError(f"{path}: the configuration inside has another size than the input {shape}; export again.")
        if self._outputs == names.RAW_OUTPUT_NAMES and not (self._config and isinstance(self._config.model, Ssd)):
            raise InputError(
                f"{path}: raw outputs need the configuration and label map that detloom packs into the file."
            )

    def __call__(self, batch: Sequence[bytes]) -> list[Rows]:
        """Detections in the picture of each serialized tf.Example, without padding rows.

        Raises:
            InputError: for a picture that cannot be decoded.
        """
        return [self._detect(serialized) for serialized in batch]

    def _detect(self, serialized: bytes) -> Rows:
        encoded = tf.train.Example.FromString(serialized).features.feature[keys.IMAGE_ENCODED].bytes_list.value
        image_rgb = decode_image_rgb(encoded[0] if encoded else b"", "the image")
        if self._config is not None:
            pixels, true_hw = fit_picture(image_rgb, self._config.model)
        else:
            pixels, true_hw = tf.image.resize(image_rgb, self._input_hw).numpy(), self._input_hw
        if self._dtype is np.uint8:
            pixels = np.rint(pixels).clip(0, 255)
        try:
            outputs = self._run(**{self._input: pixels[np.newaxis].astype(self._dtype)})
        except (RuntimeError, ValueError) as error:
            raise InputError(f"{self._path}: cannot be run ({str(error).splitlines()[0][:200]}).") from None
        share_hw = np.array(true_hw * 2, np.float32) / np.array(self._input_hw * 2, np.float32)
        if self._outputs == names.RAW_OUTPUT_NAMES:
            boxes, scores, class_ids = self._suppress(outputs, share_hw)
        else:
            boxes, scores, classes, count = (outputs[name] for name in names.OUTPUT_NAMES)
            rows = int(np.rint(count.reshape(-1)[0]))
            boxes, scores, class_ids = boxes[0, :rows], scores[0, :rows], np.rint(classes[0, :rows]).astype(np.int64)
            if self._config is not None:
                is_kept = _is_in_picture(self._config.model, boxes, share_hw)
                boxes, scores, class_ids = boxes[is_kept], scores[is_kept], class_ids[is_kept]
        return np.clip(boxes / share_hw, 0, 1), scores, class_ids

    def _suppress(self, outputs: Mapping[str, npt.NDArray[Any]], share_hw: npt.NDArray[np.float32]) -> Rows:
        """What raw outputs leave to their caller, as the SavedModel does it."""
        assert self._config is not None
        assert isinstance(self._config.model, Ssd)
        assert self._label_map is not None
        nms = self._config.model.post_processing.batch_non_max_suppression
        window = tf.constant([[0.0, 0.0, *share_hw[:2]]])
        boxes, found = _select_raw(nms, *(tf.constant(outputs[name]) for name in names.RAW_OUTPUT_NAMES), window)
        rows = int(found.num_selected_B[0])
        class_ids = np.array(self._label_map.class_ids)[found.class_indices_BM[0, :rows].numpy()]
        return boxes[0, :rows].numpy(), found.scores_BM[0, :rows].numpy(), class_ids.astype(np.int64)


def _is_in_picture(
    model: Model, boxes_yxyx: npt.NDArray[np.float32], share_hw: npt.NDArray[np.float32]
) -> npt.NDArray[np.bool_]:
    """bool [N]: not wholly in the padding, as the SavedModel decides it: CenterNet by centres, others by area."""
    inside: npt.NDArray[np.bool_]
    if isinstance(model, CenterNet):
        inside = ((boxes_yxyx[:, :2] + boxes_yxyx[:, 2:]) / 2 < share_hw[:2]).all(axis=1)
        return inside
    clipped = np.clip(boxes_yxyx, 0, share_hw)
    inside = (clipped[:, 2:] > clipped[:, :2]).all(axis=1)
    return inside


@tf.function(reduce_retracing=True)
def _select_raw(
    config: BatchNonMaxSuppression, boxes_BA4: tf.Tensor, scores_BAK: tf.Tensor, windows_yxyx_B4: tf.Tensor
) -> tuple[tf.Tensor, Selection]:
    def boxes_of(indices_BM: tf.Tensor) -> tf.Tensor:
        return tf.gather(boxes_BA4, indices_BM, batch_dims=1)

    selection = select_boxes(config, scores_BAK, lambda scores: scores, boxes_of, windows_yxyx_B4)
    return boxes_of(selection.box_indices_BM), selection


def _check_signature(path: str, signatures: Mapping[str, Any]) -> tuple[str, ...]:
    """The outputs that it answers with: ours, or the raw ones."""
    signature = signatures.get(names.SIGNATURE_IMAGES)
    if signature is not None and len(signature["inputs"]) == 1:
        for outputs in (names.OUTPUT_NAMES, names.RAW_OUTPUT_NAMES):
            if not set(outputs) - set(signature["outputs"]):
                return outputs
    raise InputError(
        f"{path}: got the signatures {signatures}, needed: '{names.SIGNATURE_IMAGES}' with one input and the outputs "
        f"{list(names.OUTPUT_NAMES)} or {list(names.RAW_OUTPUT_NAMES)}."
    )


def _read_settings(path: str, model_bytes: bytes) -> tuple[TrainEvalConfig | None, LabelMap | None]:
    """The configuration and the label map inside the file; None for a file without."""
    try:
        files = read_packed_files(model_bytes)
        if names.ASSET_CONFIG not in files or names.ASSET_LABEL_MAP not in files:
            return None, None
        config = from_json(TrainEvalConfig, files[names.ASSET_CONFIG])
        return config, parse_label_map(files[names.ASSET_LABEL_MAP], where=names.ASSET_LABEL_MAP)
    except (InputError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: {error}; export the model again.") from None
