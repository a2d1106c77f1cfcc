"""Swish, x * sigmoid(x), with its gradient in one pass."""

from collections.abc import Callable

import tensorflow as tf

from detloom.trainer_module.xla import compiled_on_cpu


@tf.custom_gradient
def swish(features: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    """`tf.nn.silu`, elementwise.

    TensorFlow's gradient is six operations, each with a tensor of the features' size. On CPU they make forward and
    backward together about 2.5 times as long on the large levels of EfficientDet.
    """
    return tf.nn.silu(features), lambda upstream: _gradient(features, upstream)


@compiled_on_cpu
def _gradient(features: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
    """The sigmoid is computed anew, as TensorFlow does: to keep it would take the memory of the features again."""
    sigmoid = tf.sigmoid(features)
    return upstream * sigmoid * (1 + features * (1 - sigmoid))
