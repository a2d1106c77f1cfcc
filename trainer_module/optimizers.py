"""Optimizers from their configuration."""

import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from detloom.schemas.config import TrainEvalConfig
from detloom.schemas.config_checks import scaled_learning_rates
from detloom.schemas.hyperparameters import apply_hyperparameters
from detloom.schemas.optimizer_config import (
    AdamOptimizer,
    AdamWOptimizer,
    MomentumOptimizer,
    Optimizer,
    RmsPropOptimizer,
)
from detloom.trainer_module.learning_rates import ConfiguredLearningRate

_LOGGER = logging.getLogger("detloom")
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


class FusedAdam(keras.optimizers.Adam):
    """`keras.optimizers.Adam` with TensorFlow's one kernel, and with decoupled decay of weights (arXiv:1711.05101).

    What a checkpoint holds is the same.
    """

    def __init__(self, learning_rate: ConfiguredLearningRate, *, decay: float = 0.0, **settings: Any) -> None:
        super().__init__(learning_rate, **settings)
        self.decay = decay

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        index, dtype = self._get_variable_index(variable), variable.dtype
        rate, step = tf.cast(learning_rate, dtype), tf.cast(self.iterations + 1, dtype)
        if self.decay and not any(name in variable.name for name in _NOT_DECAYED):
            tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate * self.decay, delta=variable)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            beta1_power=tf.pow(tf.constant(self.beta_1, dtype), step),
            beta2_power=tf.pow(tf.constant(self.beta_2, dtype), step),
            lr=rate,
            beta1=tf.constant(self.beta_1, dtype),
            beta2=tf.constant(self.beta_2, dtype),
            epsilon=tf.constant(self.epsilon, dtype),
            grad=tf.cast(gradient, dtype),
        )


def apply_update(
    optimizer: keras.Optimizer,
    gradients: Sequence[tf.Tensor],
    variables: Sequence[keras.Variable],
    learning_rate: tf.Tensor,
) -> None:
    """One update on the replica that it is called on; the step is not counted.

    `keras.Optimizer.apply` would sum the gradients over the replicas, which is done, and let them wait for one another,
    which it cannot in a branch. Each replica changes its own copies, all of them alike.
    """
    for gradient, variable in zip(gradients, variables, strict=True):
        optimizer.update_step(gradient, variable.value, learning_rate)


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
            return FusedAdam(learning_rate, epsilon=config.epsilon, name="adam")
        case AdamWOptimizer():
            return FusedAdam(learning_rate, decay=config.weight_decay, epsilon=config.epsilon, name="adamw")
    raise AssertionError(f"no such optimizer: {config}")


def with_scaled_learning_rate(config: TrainEvalConfig) -> TrainEvalConfig:
    """What is run: with `train.scale_learning_rate`, its rates for `batch_size` in place of the written ones."""
    rates = scaled_learning_rates(config.train) if config.train.scale_learning_rate else {}
    if not rates:
        return config
    written_for, batch_size = config.train.learning_rate_batch_size, config.train.batch_size
    told = ", ".join(f"{path} {rate:.4g}" for path, rate in rates.items())
    _LOGGER.info("Learning rate scaled from batch size %d to %d: %s.", written_for, batch_size, told)
    scaled = apply_hyperparameters(config, rates)
    return dataclasses.replace(scaled, train=dataclasses.replace(scaled.train, learning_rate_batch_size=batch_size))
