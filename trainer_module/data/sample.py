"""One image with its ground truth, on its way from a record to a batch."""

from collections.abc import Callable

import tensorflow as tf

from detloom.schemas.contracts.ground_truth import COLUMNS, IMAGE

Sample = dict[str, tf.Tensor]
"""Ground truth of one image; see `schemas/contracts/ground_truth.py`."""


def columns_of(sample: Sample, geometry: str) -> list[str]:
    """Return the keys of the columns of `sample` that have this geometry: boxes, points or masks."""
    return [name for name in sample if name in COLUMNS and COLUMNS[name].geometry == geometry]


def image_hw_of(sample: Sample) -> tf.Tensor:
    """Return the size of the image in pixels, int32 [2]."""
    return tf.shape(sample[IMAGE])[:2]


def split_seed(seed: tf.Tensor, count: int = 2) -> list[tf.Tensor]:
    """Return independent seeds that are made of one."""
    return tf.unstack(tf.random.experimental.stateless_split(seed, count))


def keep_boxes(sample: Sample, mask_G: tf.Tensor) -> Sample:
    """Return the sample with only the boxes for which `mask_G` is true."""
    indices = tf.where(mask_G)[:, 0]
    return {name: value if name == IMAGE else tf.gather(value, indices) for name, value in sample.items()}


def if_drawn(probability: float, seed: tf.Tensor, sample: Sample, change: Callable[[Sample], Sample]) -> Sample:
    """Return the changed sample with this probability; `change` must keep the types."""
    if probability in (0.0, 1.0):
        return change(sample) if probability else sample
    return tf.cond(tf.random.stateless_uniform([], seed) < probability, lambda: change(sample), lambda: sample)
