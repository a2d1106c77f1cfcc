"""Convert a SavedModel to a TensorFlow Lite file; calibrate and quantize int8 in a separate process.

TensorFlow's quantization crashes the process, without an exception, if the range of a value is not finite.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from detloom.schemas.contracts import detections as names
from detloom.schemas.errors import InputError
from detloom.trainer_module.data.records import ExampleFeatures, count_records, read_records
from detloom.trainer_module.detectors.preprocess import Preprocessing
from detloom.trainer_module.drawing.draw import decode_image_rgb
from detloom.trainer_module.export.fixed_size_model import fit_image

_INPUT = names.SIGNATURE_INPUTS[names.SIGNATURE_IMAGES]
_MAX_OUTPUT = 2000  # characters of a failed process


class RangesError(InputError):
    """The conversion to int8 crashed, as for values whose range is not finite after a training that diverged."""


def convert(saved_model: str, variant: str, images: Sequence[np.ndarray] = ()) -> bytes:
    """Convert the SavedModel of a `FixedSizeModel`.

    Args:
        images: float32 [1, H, W, 3], on which the value ranges of int8 are measured.

    Raises:
        RangesError: if the conversion to int8 crashes.
    """
    if variant != names.TFLITE_INT8:
        return _convert(saved_model, variant, images)
    with tempfile.TemporaryDirectory() as name:
        archive, converted = Path(name) / "images.npz", Path(name) / "int8.tflite"
        np.savez(archive, *images)
        command = [sys.executable, "-m", __spec__.name, saved_model, str(archive), str(converted)]
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},  # this process holds the memory of the GPU
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return converted.read_bytes()
    if -done.returncode not in (signal.SIGSEGV, signal.SIGABRT):
        raise RuntimeError(f"The conversion to int8 ended with {done.returncode}: {done.stdout[-_MAX_OUTPUT:]}")
    last_line = done.stdout.strip().rpartition("\n")[2]
    raise RangesError(
        f"The conversion to int8 (export.tflite) crashed ({last_line}). A scale that is infinite or out of range "
        "means that the training diverged, or that the moving averages of batch norm need more steps: lower "
        "train.optimizer.learning_rate, raise train.num_steps, or leave out int8."
    )


def _convert(saved_model: str, variant: str, images: Iterable[np.ndarray]) -> bytes:
    converter = tf.lite.TFLiteConverter.from_saved_model(saved_model, signature_keys=[names.SIGNATURE_IMAGES])
    converter.allow_custom_ops = True  # for the suppression
    if variant != "float32":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if variant == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if variant == names.TFLITE_INT8:
        # The suppression has no 8-bit form: its inputs are converted back to floats.
        builtins = tf.lite.OpsSet
        converter.target_spec.supported_ops = [builtins.TFLITE_BUILTINS_INT8, builtins.TFLITE_BUILTINS]
        converter.inference_input_type = tf.uint8
        converter.representative_dataset = lambda: ({_INPUT: image} for image in images)
    return bytes(converter.convert())


def read_calibration_images(
    train_files: Sequence[str], preprocessing: Preprocessing, num_images: int
) -> list[np.ndarray]:
    """Read float32 images [1, H, W, 3] spread over the shards.

    The first one gets a black and a white corner, so that the range of the input is 0 to 255: an 8-bit number is then
    the color itself.
    """
    num_records = sum(count_records(train_files)) if train_files else 0
    if not num_records:
        raise InputError("export.tflite: int8 needs images of the training split, and there are none.")
    one_of = max(num_records // num_images, 1)
    images = []
    for serialized in read_records(train_files, one_of=one_of).take(num_images):
        image_rgb = decode_image_rgb(ExampleFeatures(serialized.numpy()).image_bytes, "a training image")
        images.append(fit_image(image_rgb, preprocessing)[0][np.newaxis])
    images[0][0, 0, 0], images[0][0, -1, -1] = 0.0, 255.0
    return images


if __name__ == "__main__":
    Path(sys.argv[3]).write_bytes(_convert(sys.argv[1], names.TFLITE_INT8, np.load(sys.argv[2]).values()))
