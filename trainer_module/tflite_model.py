"""Run a TFLite detector on the examples that its SavedModel is evaluated on."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from detloom.schemas import detections as names
from detloom.schemas import example_keys as keys
from detloom.schemas.errors import InputError
from detloom.trainer_module.draw import decode_image_rgb

Rows = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.int64]]


class TfliteDetector:
    """Call it with serialized tf.Examples, get a list of (boxes, scores, class ids) back, as from `LoadedSignature`.

    The model has the signature `serving_default` with one input, uint8 or float32 [1, H, W, 3] with pixel values from 0
    to 255, and the outputs of `schemas/detections.py`; pictures are resized to H x W, each side by its own factor.
    """

    def __init__(self, path: str) -> None:
        """Load the model.

        Raises:
            InputError: naming the file, for what is not such a model.
        """
        self._path = path
        try:
            with tf.io.gfile.GFile(path, "rb") as file:
                interpreter = tf.lite.Interpreter(model_content=file.read(), num_threads=1)
            signatures = interpreter.get_signature_list()
        except (ValueError, RuntimeError, tf.errors.OpError) as error:
            raise InputError(f"{path}: is no TFLite model ({str(error).splitlines()[0][:200]}).") from None
        signature = signatures.get(names.SIGNATURE_IMAGES)
        if signature is None or len(signature["inputs"]) != 1 or set(names.OUTPUT_NAMES) - set(signature["outputs"]):
            raise InputError(
                f"{path}: got the signatures {signatures}, needed: '{names.SIGNATURE_IMAGES}' with one input and the "
                f"outputs {list(names.OUTPUT_NAMES)}."
            )
        (self._input,) = signature["inputs"]
        self._interpreter = interpreter  # kept: the runner does not own it
        self._run = interpreter.get_signature_runner(names.SIGNATURE_IMAGES)
        details = self._run.get_input_details()[self._input]
        shape, self._dtype = details["shape"].tolist(), details["dtype"]
        if len(shape) != 4 or shape[0] != 1 or shape[3] != 3 or self._dtype not in (np.uint8, np.float32):
            raise InputError(
                f"{path}: got an input of {np.dtype(self._dtype).name} {shape}, allowed: uint8 or float32 [1, H, W, 3]."
            )
        self._input_hw = (shape[1], shape[2])

    def __call__(self, batch: Sequence[bytes]) -> list[Rows]:
        """Detections in the picture of each serialized tf.Example, without padding rows.

        Raises:
            InputError: for a picture that cannot be decoded.
        """
        return [self._detect(serialized) for serialized in batch]

    def _detect(self, serialized: bytes) -> Rows:
        encoded = tf.train.Example.FromString(serialized).features.feature[keys.IMAGE_ENCODED].bytes_list.value
        image_rgb = decode_image_rgb(encoded[0] if encoded else b"", "the image")
        pixels = tf.image.resize(image_rgb, self._input_hw).numpy()
        if self._dtype is np.uint8:
            pixels = np.rint(pixels).clip(0, 255)
        outputs = self._run(**{self._input: pixels[np.newaxis].astype(self._dtype)})
        boxes, scores, classes, count = (outputs[name] for name in names.OUTPUT_NAMES)
        rows = int(np.rint(count.reshape(-1)[0]))
        return boxes[0, :rows], scores[0, :rows], np.rint(classes[0, :rows]).astype(np.int64)
