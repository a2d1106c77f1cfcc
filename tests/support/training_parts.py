"""Batches in memory and `TrainSteps` on them, for tests in this process and in others."""

import functools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from detloom.schemas.contracts.ground_truth import MASKS
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.contracts.metric_names import METRIC_NAMES
from detloom.schemas.model.config import Model, TrainEvalConfig
from detloom.schemas.presets.presets import find_preset
from detloom.trainer_module.detectors.detector import Detector
from detloom.trainer_module.detectors.families import build_detector, family_of
from detloom.trainer_module.detectors.preprocess import network_hw
from detloom.trainer_module.evaluation.coco_metrics import CocoMetrics
from detloom.trainer_module.evaluation.split_evaluator import Evaluation
from detloom.trainer_module.run_state.train_log_and_tensorboard import LOG_FILE
from detloom.trainer_module.runtime.numerics import network_precision
from detloom.trainer_module.training.step import TrainSteps
from detloom.trainer_module.weights.freezing import choose_trained

LABEL_MAP = LabelMap.from_names(["red", "green"])
NUM_BATCHES = 3  # then they repeat


def make_batches(config: TrainEvalConfig) -> dict[str, np.ndarray]:
    """Make red and green squares on noise, up to four per image; [batches, images, ...].

    If the detector learns masks, the mask of a square is its left half.
    """
    random = np.random.default_rng(0)
    shape = (NUM_BATCHES, config.train.batch_size)
    height, width = network_hw(config.model.image_resizer)
    images = random.normal(128, 38, (*shape, height, width, 3)).astype(np.float32)
    corners = random.uniform(0, 0.5, (*shape, 4, 2))
    boxes = np.concatenate([corners, corners + random.uniform(0.2, 0.5, (*shape, 4, 2))], axis=-1).astype(np.float32)
    classes = random.integers(-1, 2, (*shape, 4)).astype(np.int32)
    boxes[classes < 0] = 0
    masks = np.zeros((*classes.shape, height, width), np.uint8)
    for batch, image, box in zip(*np.nonzero(classes >= 0), strict=True):
        top, left, bottom, right = (boxes[batch, image, box] * [height, width, height, width]).astype(int)
        images[batch, image, top:bottom, left:right, classes[batch, image, box]] = 255
        masks[batch, image, box, top:bottom, left : (left + right) // 2] = 1
    has_masks = MASKS in family_of(config.model).ground_truth_columns
    return {
        "image": images,
        "boxes_yxyx_rel": boxes,
        "class_indices": classes,
        "true_hw": np.full((*shape, 2), (height, width), np.int32),
        "num_dropped": np.ones(shape, np.int32),
        **({MASKS: masks} if has_masks else {}),
    }


def small_efficientdet(preset: str, side: int, min_level: int, max_level: int) -> TrainEvalConfig:
    """Return the configuration of an EfficientDet with small images, few levels and few channels."""
    config = find_preset(preset).config
    model, levels = config.model, {"min_level": min_level, "max_level": max_level}
    neck = replace(model.feature_extractor.neck, **levels, num_iterations=1, num_filters=8)
    small = replace(
        model,
        image_resizer=replace(model.image_resizer, min_dimension=side, max_dimension=side),
        feature_extractor=replace(model.feature_extractor, neck=neck),
        anchor_generator=replace(model.anchor_generator, **levels),
        box_predictor=replace(model.box_predictor, depth=8, num_layers_before_predictor=1),
    )
    return replace(config, model=small)


_DETECTORS: dict[tuple[str, LabelMap, str], tuple[Detector, list[np.ndarray]]] = {}  # and their initial weights


@functools.cache
def one_device() -> tf.distribute.Strategy:
    return tf.distribute.OneDeviceStrategy("/cpu:0")


def reset_detector(model: Model, label_map: LabelMap = LABEL_MAP) -> Detector:
    """Return a detector with its initial weights, of seed 0, for `one_device`; the network is built only once.

    A second call resets the network of the first: it must not be used any more.
    """
    key = (repr(model), label_map, keras.config.dtype_policy().name)
    if key not in _DETECTORS:
        keras.utils.set_random_seed(0)
        with one_device().scope():
            detector = build_detector(model, label_map)
        _DETECTORS[key] = detector, [variable.numpy() for variable in detector.network.weights]
    detector, values = _DETECTORS[key]
    for variable, value in zip(detector.network.weights, values, strict=True):
        variable.assign(value)
    return detector


def make_steps(
    config: TrainEvalConfig,
    strategy: tf.distribute.Strategy | None = None,
    batches: dict[str, np.ndarray] | None = None,
) -> tuple[TrainSteps, Iterator[Any]]:
    """Make steps with the same weights at every call; each replica gets the next images of the batch.

    Args:
        strategy: None is `one_device`, with `reset_detector`.
    """
    with network_precision(config.train.precision):
        if strategy is None:
            detector = reset_detector(config.model)
        else:
            keras.utils.set_random_seed(0)
            with strategy.scope():
                detector = build_detector(config.model, LABEL_MAP)
    strategy = strategy or one_device()
    steps = TrainSteps(config.train, detector, choose_trained(config.train, detector.network), strategy)
    data = batches or make_batches(config)

    def read(context: tf.distribute.InputContext) -> tf.data.Dataset:
        size = context.get_per_replica_batch_size(config.train.batch_size)
        rows = {name: array.reshape(-1, size, *array.shape[2:]) for name, array in data.items()}
        return tf.data.Dataset.from_tensor_slices(rows).repeat()

    return steps, iter(strategy.distribute_datasets_from_function(read))


def weights_of(steps: TrainSteps) -> list[np.ndarray]:
    return [variable.numpy() for variable in steps.detector.network.weights]


def evaluation_of(ap: float, loss: float = 1.0) -> Evaluation:
    """Return an evaluation of four images, in which all metrics have the same value."""
    metrics = CocoMetrics(**dict.fromkeys(METRIC_NAMES, ap), per_class=(), num_images=4, num_boxes=4)
    return Evaluation(metrics=metrics, losses={"loss": loss}, num_images=4, seconds=0.0)


def newest_state(out: Path) -> dict[str, np.ndarray]:
    """Return every tensor of the newest checkpoint of a run."""
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(out / "checkpoints")))
    names = [name for name in reader.get_variable_to_shape_map() if not name.startswith("_CHECKPOINTABLE")]
    return {name: reader.get_tensor(name) for name in names}


def assert_same_arrays(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


def saved_steps(out: Path, folder: str = "checkpoints") -> list[int]:
    return sorted(int(path.stem.partition("-")[2]) for path in (out / folder).glob("*.index"))


def rows_of(out: Path, kind: str = "train") -> list[dict[str, Any]]:
    """Return the rows of one kind in the log of a run."""
    rows = [json.loads(line) for line in (out / LOG_FILE).read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row["kind"] == kind]
