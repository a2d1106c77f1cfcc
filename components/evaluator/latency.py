"""Measure the latency of exported models in turn, so that load on the machine affects all of them alike."""

import time
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from detloom.components.evaluator.gates import Latency
from detloom.components.evaluator.inference import ModelFile, load_model
from detloom.schemas.contracts.detections import ONNX_FILE, SAVED_MODEL_FILE
from detloom.schemas.errors import InputError
from detloom.trainer_module.inference.encoded_image import EncodedImage
from detloom.trainer_module.inference.runtime import Runtime

_NUM_WARM_UP = 3  # the first call traces the function, the next ones fill caches


def measure_latency(files_by_name: Mapping[str, ModelFile], images: Sequence[bytes]) -> dict[str, Latency]:
    """Measure the wall time for one JPEG or PNG, including decoding and NMS; empty without images."""
    if not images:
        return {}
    models = {f"{file.path} ({name}, {file.runtime})": load_model(file) for name, file in files_by_name.items()}
    time_in_turn(models, [images[0]] * _NUM_WARM_UP)
    seconds = time_in_turn(models, images)
    return {name: summarize(values) for name, values in zip(files_by_name, seconds.values(), strict=True)}


def time_in_turn(models: Mapping[str, Runtime], images: Sequence[bytes]) -> dict[str, list[float]]:
    """Measure the seconds of each model for each image; the order of the models alternates.

    Raises:
        InputError: a model returns no detections; names it.
    """
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for number, image in enumerate(images):
        names = list(models) if number % 2 == 0 else list(models)[::-1]
        for name in names:
            started = time.perf_counter()
            try:
                models[name].detect([EncodedImage(image)])
            except InputError as error:
                raise InputError(f"{name}: failed while its latency was measured ({str(error).rstrip('.')}).") from None
            seconds[name].append(time.perf_counter() - started)
    return seconds


def summarize(seconds: Sequence[float]) -> Latency:
    """Compute median and 95th percentile."""
    milliseconds = 1000 * np.array(seconds)
    return Latency(
        median_ms=float(np.median(milliseconds)), p95_ms=float(np.quantile(milliseconds, 0.95)), num_images=len(seconds)
    )


def count_model_bytes(model_dir: str) -> int:
    """Return the total size of all files of a SavedModel, without the ONNX file beside it."""
    assert tf.io.gfile.exists(f"{model_dir}/{SAVED_MODEL_FILE}"), model_dir
    walked = tf.io.gfile.walk(model_dir)  # names of folders at gs:// end in "/"
    files = [f"{folder.rstrip('/')}/{name}" for folder, _, names in walked for name in names if name != ONNX_FILE]
    return sum(tf.io.gfile.stat(path).length for path in files)
