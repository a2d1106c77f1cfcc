"""Export a trained detector as TensorFlow Lite files, for phones and embedded devices.

A file takes one image of the network's size, [1, H, W, 3] with colors of 0 to 255 (float32, or uint8 in the int8
variant), and normalizes it. The contract inside the file describes how to fit an image to this size, and the outputs.
`inference/tflite_runtime.py` runs such files.
"""

import logging
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from detloom.schemas.contracts import detections as names
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.model.export_and_quantization import Export
from detloom.schemas.reading.replace_when_done import replace_when_done
from detloom.trainer_module.detectors.detector import Detector
from detloom.trainer_module.export.fixed_size_model import FixedSizeModel
from detloom.trainer_module.export.tflite_metadata import with_metadata
from detloom.trainer_module.export.tflite_quantization import convert, read_calibration_images

_LOGGER = logging.getLogger("detloom")


def export_tflite(
    detector: Detector, config: TrainEvalConfig, settings: Export, train_files: Sequence[str], folder: Path
) -> list[Path]:
    """Write `<variant>.tflite` for each of `settings.tflite` into `folder`, atomically.

    The caller has checked the settings with `config.model.check_export`.

    Args:
        train_files: shards; the value ranges of int8 are measured on images spread over them.

    Raises:
        InputError: if int8 has no images.
        RangesError: see `convert`.
    """
    if not settings.tflite:
        return []
    for warning in detector.family.tflite_warnings() if settings.tflite_outputs != "raw" else ():
        _LOGGER.warning("export.tflite: %s", warning)
    lite = FixedSizeModel(detector, raw=settings.tflite_outputs == "raw", max_detections=settings.tflite_max_detections)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with replace_when_done(folder) as partial, tempfile.TemporaryDirectory() as saved_model:
        partial.mkdir()
        tf.saved_model.save(lite, saved_model, signatures={names.SIGNATURE_IMAGES: lite.serve})
        for variant in settings.tflite:
            started = time.monotonic()
            images: Sequence[np.ndarray] = ()
            if variant == names.TFLITE_INT8:
                num_images = settings.tflite_calibration_images
                images = read_calibration_images(train_files, detector.preprocessing, num_images)
            converted = convert(saved_model, variant, images)
            model = with_metadata(converted, variant, detector, config, settings)
            (partial / f"{variant}{names.TFLITE_SUFFIX}").write_bytes(model)
            seconds = time.monotonic() - started
            _LOGGER.info("TensorFlow Lite %s: %.2f MB, converted in %.0f s.", variant, len(model) / 1e6, seconds)
    return [folder / f"{variant}{names.TFLITE_SUFFIX}" for variant in settings.tflite]
