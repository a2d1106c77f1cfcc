"""Measure how long a training step takes on this machine, on generated images."""

import contextlib
import logging
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import keras
import tensorflow as tf

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.config import TrainEvalConfig
from detloom.trainer_module.data.input_pipeline import build_train_dataset
from detloom.trainer_module.detectors.families import build_detector
from detloom.trainer_module.training.overfit_check import make_images
from detloom.trainer_module.training.step import TrainSteps
from detloom.trainer_module.weights.restore import find_trained

NUM_CALLS, STEPS_PER_CALL = 4, 3
_LOGGER = logging.getLogger(__name__)


def measure_step_seconds(config: TrainEvalConfig, class_names: Sequence[str], image_hw: tuple[int, int]) -> float:
    """Return the median seconds of a training step with reading and augmentation, after compilation.

    Args:
        config: the weights are random ones.
        image_hw: height and width of the stored images, in pixels.
    """
    label_map = LabelMap.from_names(class_names)
    keras.utils.set_random_seed(config.train.seed)
    detector = build_detector(config.model, label_map)
    trained = find_trained(config.train, detector)
    steps = TrainSteps(config.train, detector, trained, tf.distribute.get_strategy())
    with generated_batches(config, label_map, image_hw) as batches:
        calls = [steps.run(batches, STEPS_PER_CALL) for _ in range(1 + NUM_CALLS)]
    seconds = [call.seconds / STEPS_PER_CALL for call in calls[1:]]  # the first call compiles
    _LOGGER.info("A training step takes %s s.", ", ".join(f"{value:.2f}" for value in sorted(seconds)))
    return statistics.median(seconds)


@contextlib.contextmanager
def generated_batches(
    config: TrainEvalConfig, label_map: LabelMap, image_hw: tuple[int, int]
) -> Iterator[Iterator[dict[str, tf.Tensor]]]:
    """Provide the training batches of generated images, which exist within the block."""
    with tempfile.TemporaryDirectory(prefix="detloom-step-time-") as folder:
        file = str(Path(folder, "images.tfrecord"))
        with tf.io.TFRecordWriter(file) as writer:
            for record in make_images(label_map, image_hw, as_photographs=True):
                writer.write(record)
        yield iter(build_train_dataset(config, label_map, [file], batch_size=config.train.batch_size))
