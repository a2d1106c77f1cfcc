"""Whether TensorFlow uses only operations that give the same bits each time."""

import tensorflow as tf
from tensorflow.python.framework import config as _framework_config  # no public name tells whether it is on


def use_deterministic_operations() -> None:
    """From now on, for the life of the process."""
    tf.config.experimental.enable_op_determinism()


def are_operations_deterministic() -> bool:
    """Then there is no clock on the device either."""
    return bool(_framework_config.is_op_determinism_enabled())
