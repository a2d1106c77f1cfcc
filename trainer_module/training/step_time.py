"""Measure how long a training step takes on this machine, on generated images."""

import contextlib
import logging
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import keras
import tensorflow as tf

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.config import TrainEvalConfig
from detloom.trainer_module.data.input_pipeline import build_train_dataset
from detloom.trainer_module.detectors.families import build_detector
from detloom.trainer_module.training.optimizers import build_optimizer
from detloom.trainer_module.training.overfit_check import make_images
from detloom.trainer_module.training.step import TrainSteps
from detloom.trainer_module.weights.restore import find_trained

NUM_CALLS, STEPS_PER_CALL = 4, 3
_LOGGER = logging.getLogger(__name__)


def measure_step_seconds(config: TrainEvalConfig, class_names: Sequence[str], image_hw: tuple[int, int]) -> float:
    """Return the median seconds of a training step with reading and augmentation, after compilation.

    Args:
        config: the weights are random ones; the moving average is not computed.
        image_hw: height and width of the stored images, in pixels.
    """
    label_map = LabelMap.from_names(class_names)
    keras.utils.set_random_seed(config.train.seed)
    detector = build_detector(config.model, label_map)
    trained = find_trained(config.train, detector)
    optimizer = build_optimizer(config.train.optimizer)
    optimizer.build(trained.variables)
    steps = TrainSteps(config.train, detector, trained, optimizer, None, tf.distribute.get_strategy())
    with generated_batches(config, label_map, image_hw) as batches:
        steps.run(batches, STEPS_PER_CALL)  # compiles
        seconds = seconds_per_step(steps, batches, NUM_CALLS, STEPS_PER_CALL)
    _LOGGER.info("A training step takes %s s.", ", ".join(f"{value:.2f}" for value in sorted(seconds)))
    return statistics.median(seconds)


def seconds_per_step(
    steps: TrainSteps, batches: Iterator[dict[str, tf.Tensor]], num_calls: int, steps_per_call: int
) -> list[float]:
    """Return the seconds of a step in each call, for steps that are already compiled."""
    seconds = []
    for _ in range(num_calls):
        started = time.perf_counter()
        steps.run(batches, steps_per_call)  # returns when the device is ready
        seconds.append((time.perf_counter() - started) / steps_per_call)
    return seconds


@contextlib.contextmanager
def generated_batches(
    config: TrainEvalConfig, label_map: LabelMap, image_hw: tuple[int, int]
) -> Iterator[Iterator[dict[str, tf.Tensor]]]:
    """Provide the training batches of generated images, which exist within the block."""
    with tempfile.TemporaryDirectory(prefix="detloom-step-time-") as folder:
        file = str(Path(folder, "images.tfrecord"))
        with tf.io.TFRecordWriter(file) as writer:
            for record in make_images(label_map, image_hw):
                writer.write(record)
        yield iter(build_train_dataset(config, label_map, [file], batch_size=config.train.batch_size))
