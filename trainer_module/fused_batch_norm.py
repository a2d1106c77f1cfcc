"""Batch normalization as one operation."""

from typing import Any

import keras
import tensorflow as tf


class FusedBatchNorm(keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization` for [B, H, W, C] on TensorFlow's fused kernel.

    Keras 3 normalizes in several passes over the tensor, which makes the network's forward and backward pass on CPU 1.6
    times as long (benchmarks/fused_batch_norm.py). The moving variance is fed with the unbiased estimate (N / (N - 1)),
    as the fused kernel gives it and as the Object Detection API's models do.
    """

    def call(self, inputs: tf.Tensor, training: bool | None = None, mask: Any = None) -> tf.Tensor:
        if not training or not self.trainable:
            output, _, _ = tf.compat.v1.nn.fused_batch_norm(
                inputs,
                self._scale(),
                self._offset(),
                mean=tf.convert_to_tensor(self.moving_mean),
                variance=tf.convert_to_tensor(self.moving_variance),
                epsilon=self.epsilon,
                is_training=False,
            )
            return output
        output, mean, variance = tf.compat.v1.nn.fused_batch_norm(
            inputs, self._scale(), self._offset(), epsilon=self.epsilon, is_training=True
        )
        for moving, batch in ((self.moving_mean, mean), (self.moving_variance, variance)):
            moving.assign(moving * self.momentum + tf.cast(batch, moving.dtype) * (1.0 - self.momentum))
        return output

    def _scale(self) -> tf.Tensor:
        return tf.convert_to_tensor(self.gamma)

    def _offset(self) -> tf.Tensor:
        return tf.convert_to_tensor(self.beta)
