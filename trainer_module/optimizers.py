"""Optimizers from their configuration."""

import keras
import tensorflow as tf

from detloom.schemas.optimizer_config import (
    AdamOptimizer,
    AdamWOptimizer,
    MomentumOptimizer,
    Optimizer,
    RmsPropOptimizer,
)
from detloom.trainer_module.learning_rates import ConfiguredLearningRate

_NOT_DECAYED = ["bias", "beta", "gamma"]  # variable names; shrinking them only fights batch norm


class FusedMomentum(keras.optimizers.SGD):
    """`keras.optimizers.SGD` with TensorFlow's one kernel for the whole update of a variable.

    Keras 3 makes five operations of it, each with a tensor of its own: half of the time of a step's update on CPU. What
    a checkpoint holds is the same.
    """

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        if self.momentum == 0:  # has no slots
            super().update_step(gradient, variable, learning_rate)
            return
        tf.raw_ops.ResourceApplyKerasMomentum(
            var=variable.handle,
            accum=self.momentums[self._get_variable_index(variable)].value.handle,
            lr=tf.cast(learning_rate, variable.dtype),
            grad=tf.cast(gradient, variable.dtype),
            momentum=tf.constant(self.momentum, variable.dtype),
            use_nesterov=self.nesterov,
        )


def build_optimizer(config: Optimizer) -> keras.Optimizer:
    """The optimizer alone: gradients are clipped and weights averaged by the training loop."""
    learning_rate = ConfiguredLearningRate(config.learning_rate)
    match config:
        case MomentumOptimizer():
            return FusedMomentum(learning_rate, momentum=config.momentum, nesterov=config.nesterov, name="SGD")
        case RmsPropOptimizer():
            # The reference hands `decay` to Keras as a decay of the learning rate; here it is what its name, its
            # documentation and the reference under TensorFlow 1 say, the share of the old mean square that is kept.
            return keras.optimizers.RMSprop(
                learning_rate, rho=config.decay, momentum=config.momentum, epsilon=config.epsilon
            )
        case AdamOptimizer():
            return keras.optimizers.Adam(learning_rate, epsilon=config.epsilon)
        case AdamWOptimizer():
            optimizer = keras.optimizers.AdamW(learning_rate, weight_decay=config.weight_decay, epsilon=config.epsilon)
            optimizer.exclude_from_weight_decay(var_names=_NOT_DECAYED)
            return optimizer
    raise AssertionError(f"no such optimizer: {config}")
