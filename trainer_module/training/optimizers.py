"""Build optimizers from their configuration; moving average of the trained weights."""

import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.model.config_checks import rates_by_path, with_rates_for_batch_size
from detloom.schemas.model.optimizers import (
    AdamOptimizer,
    AdamWOptimizer,
    MomentumOptimizer,
    MovingAverage,
    Optimizer,
    RmsPropOptimizer,
)
from detloom.trainer_module.training.learning_rates import ConfiguredLearningRate

_LOGGER = logging.getLogger("detloom")
# Names of variables without weight decay; google/automl decays only those called kernel or weight.
_NOT_DECAYED = ["bias", "beta", "gamma", "bifpn_combine_weights"]


class FusedMomentum(keras.optimizers.SGD):
    """`keras.optimizers.SGD` with TensorFlow's single fused kernel for the update of a variable.

    Keras 3 uses five operations, each with its own tensor, which takes twice the time of an update on CPU. The content
    of a checkpoint is the same.
    """

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        if self.momentum == 0:  # no slots
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
    """`keras.optimizers.Adam` with TensorFlow's fused kernel and decoupled weight decay (arXiv:1711.05101).

    The content of a checkpoint is the same.
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
    """Apply one update on the current replica, without counting the step.

    `keras.Optimizer.apply` would sum the gradients over replicas, which is already done, and would synchronize the
    replicas, which is impossible inside a branch. Each replica updates its own copies with equal values.
    """
    for gradient, variable in zip(gradients, variables, strict=True):
        optimizer.update_step(gradient, variable.value, learning_rate)


def build_optimizer(config: Optimizer) -> keras.Optimizer:
    """Build the optimizer only: the training loop clips gradients and averages weights."""
    learning_rate = ConfiguredLearningRate(config.learning_rate)
    match config:
        case MomentumOptimizer():
            return FusedMomentum(learning_rate, momentum=config.momentum, nesterov=config.nesterov, name="SGD")
        case RmsPropOptimizer():
            # The reference passes `decay` to Keras as a decay of the learning rate. Here it is what its name, its
            # documentation and the TF1 reference mean: the share of the old mean square that is kept.
            return keras.optimizers.RMSprop(
                learning_rate, rho=config.decay, momentum=config.momentum, epsilon=config.epsilon
            )
        case AdamOptimizer():
            return FusedAdam(learning_rate, epsilon=config.epsilon, name="adam")
        case AdamWOptimizer():
            return FusedAdam(learning_rate, decay=config.weight_decay, epsilon=config.epsilon, name="adamw")
    raise AssertionError(f"no such optimizer: {config}")


def with_scaled_learning_rate(config: TrainEvalConfig) -> TrainEvalConfig:
    """Return the effective configuration: with `train.scale_learning_rate`, rates are scaled to `batch_size`."""
    train = with_rates_for_batch_size(config.train) if config.train.scale_learning_rate else config.train
    if train is config.train:
        return config
    rates = rates_by_path(train.optimizer.learning_rate)
    text = ", ".join(f"{path} {rate:.4g}" for path, rate in rates.items() if rate)
    written_for = config.train.learning_rate_batch_size
    _LOGGER.info("Learning rate scaled from batch size %d to %d: %s.", written_for, train.batch_size, text)
    return dataclasses.replace(config, train=train)


class AveragedWeights(tf.Module):
    """Moving averages of variables. A checkpoint that tracks this object contains them.

    With `dynamic`, it is the average of the Object Detection API; with `statistics` too, that of google/automl's
    EfficientDet (`utils.get_ema_vars`).
    """

    def __init__(self, config: MovingAverage, variables: Sequence[keras.Variable]) -> None:
        """Create the averages; call it in the strategy's scope."""
        super().__init__()
        self._config, self._variables = config, list(variables)
        # A dynamic average starts at 0 as in the reference: its first decays, 2/11, 3/12, ..., soon remove the start.
        # A fixed decay keeps the start for long: after 1,000 steps at 0.9999 it is 90 % of the average.
        self.averages = [
            tf.Variable(tf.zeros_like(variable) if config.dynamic else variable, trainable=False)
            for variable in self._variables
        ]

    def update(self, num_updates: tf.Tensor) -> None:
        """Include the current weights, after `num_updates` updates of them (1 at the first call)."""
        kept = tf.constant(self._config.decay, tf.float32)
        if self._config.dynamic:
            count = tf.cast(num_updates, tf.float32)
            kept = tf.minimum(kept, (1 + count) / (10 + count))
        for average, variable in zip(self.averages, self._variables, strict=True):
            tf.raw_ops.ResourceApplyGradientDescent(
                var=average.handle, alpha=1 - kept, delta=average - tf.convert_to_tensor(variable)
            )

    def assign_to_variables(self) -> None:
        """Load the averages into the network."""
        for variable, average in zip(self._variables, self.averages, strict=True):
            variable.assign(average)

    @contextlib.contextmanager
    def in_network(self) -> Iterator[None]:
        """Load the averages into the network; restore the trained weights bit for bit afterwards."""
        trained = [variable.numpy() for variable in self._variables]
        try:
            self.assign_to_variables()
            yield
        finally:
            for variable, value in zip(self._variables, trained, strict=True):
                variable.assign(value)
