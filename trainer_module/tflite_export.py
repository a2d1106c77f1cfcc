"""A trained detector as TensorFlow Lite files, for telephones and small computers.

A file takes one picture of the network's size, [1, H, W, 3] with colours from 0 to 255 (float32, or uint8 where its
numbers are 8-bit), and normalizes it itself. How a picture gets that size, and what the file answers, stands in the
contract inside it. `tflite_model.py` runs such files.
"""

import logging
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from detloom.schemas import detections as names
from detloom.schemas.center_net_config import CenterNet
from detloom.schemas.config import Model, TrainEvalConfig
from detloom.schemas.errors import InputError
from detloom.schemas.example_keys import IMAGE_ENCODED
from detloom.schemas.export_config import Export
from detloom.trainer_module.detector import Detector
from detloom.trainer_module.draw import decode_image_rgb
from detloom.trainer_module.fit_picture import fit_picture
from detloom.trainer_module.fixed_size_model import FixedSizeModel
from detloom.trainer_module.move_folder import move_folder
from detloom.trainer_module.records import count_records, read_records
from detloom.trainer_module.tflite_metadata import with_metadata

_LOGGER = logging.getLogger("detloom")
_INPUT = names.SIGNATURE_INPUTS[names.SIGNATURE_IMAGES]


def export_tflite(
    detector: Detector, config: TrainEvalConfig, settings: Export, train_files: Sequence[str], folder: Path
) -> list[Path]:
    """Write `<variant>.tflite` for each of `settings.tflite` into `folder`, which is there whole or not at all.

    Args:
        train_files: shards; int8's ranges are measured on pictures from all over them.

    Raises:
        InputError: no pictures for int8. What `check_export` refuses is to be refused before.
    """
    if not settings.tflite:
        return []
    _warn(detector.config, settings)
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True, exist_ok=True)
    lite = FixedSizeModel(detector, raw=settings.tflite_outputs == "raw", max_detections=settings.tflite_max_detections)
    with tempfile.TemporaryDirectory() as saved_model:
        tf.saved_model.save(lite, saved_model, signatures={names.SIGNATURE_IMAGES: lite.serve})
        for variant in settings.tflite:
            started = time.monotonic()
            pictures = _read_pictures(train_files, detector.config, settings) if variant == names.TFLITE_INT8 else ()
            model = with_metadata(
                _convert(saved_model, variant, pictures), variant, detector.label_map, config, settings
            )
            (partial / f"{variant}{names.TFLITE_SUFFIX}").write_bytes(model)
            seconds = time.monotonic() - started
            _LOGGER.info("TensorFlow Lite %s: %.2f MB, converted in %.0f s.", variant, len(model) / 1e6, seconds)
    shutil.rmtree(folder, ignore_errors=True)
    move_folder(partial, folder)
    return [folder / f"{variant}{names.TFLITE_SUFFIX}" for variant in settings.tflite]


def _warn(model: Model, settings: Export) -> None:
    if isinstance(model, CenterNet) or settings.tflite_outputs == "raw":
        return
    nms = model.post_processing.batch_non_max_suppression
    if nms.soft_nms_sigma > 0:
        _LOGGER.warning(
            "export.tflite: TensorFlow Lite has no soft suppression; what overlaps by an IoU of more than %g is left "
            "out instead.",
            nms.iou_threshold,
        )


def _convert(saved_model: str, variant: str, pictures: Sequence[np.ndarray]) -> bytes:
    converter = tf.lite.TFLiteConverter.from_saved_model(saved_model, signature_keys=[names.SIGNATURE_IMAGES])
    converter.allow_custom_ops = True  # the suppression
    if variant != "float32":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if variant == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if variant == names.TFLITE_INT8:
        # The suppression has no 8-bit form: its inputs become floats again.
        builtins = tf.lite.OpsSet
        converter.target_spec.supported_ops = [builtins.TFLITE_BUILTINS_INT8, builtins.TFLITE_BUILTINS]
        converter.inference_input_type = tf.uint8
        converter.representative_dataset = lambda: ({_INPUT: picture} for picture in pictures)
    return bytes(converter.convert())


def _read_pictures(train_files: Sequence[str], model: Model, settings: Export) -> list[np.ndarray]:
    """float32 [1, H, W, 3] each, from all over the shards.

    The first has a black and a white corner, so that the input's range is 0 to 255 whatever the pictures are: each
    8-bit number then is the colour.
    """
    num_records = sum(count_records(train_files)) if train_files else 0
    if not num_records:
        raise InputError("export.tflite: int8 needs pictures of the training split, and there are none.")
    one_of = max(num_records // settings.tflite_calibration_images, 1)
    pictures = list(_pictures_of(read_records(train_files, one_of=one_of), model, settings.tflite_calibration_images))
    pictures[0][0, 0, 0], pictures[0][0, -1, -1] = 0.0, 255.0
    return pictures


def _pictures_of(records: tf.data.Dataset, model: Model, count: int) -> Iterator[np.ndarray]:
    for serialized in records.take(count).as_numpy_iterator():
        encoded = tf.train.Example.FromString(serialized).features.feature[IMAGE_ENCODED].bytes_list.value
        picture, _ = fit_picture(decode_image_rgb(encoded[0] if encoded else b"", "a training picture"), model)
        yield picture[np.newaxis]
