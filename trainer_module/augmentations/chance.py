"""Whether a change happens."""

from collections.abc import Callable

import tensorflow as tf

from detloom.trainer_module.sample import Sample


def if_drawn(probability: float, seed: tf.Tensor, sample: Sample, change: Callable[[Sample], Sample]) -> Sample:
    """The changed picture with this probability; `change` must keep the types."""
    if probability in (0.0, 1.0):
        return change(sample) if probability else sample
    return tf.cond(tf.random.stateless_uniform([], seed) < probability, lambda: change(sample), lambda: sample)
