"""Optimizers from their configuration."""

import keras

from detloom.schemas.optimizer_config import (
    AdamOptimizer,
    AdamWOptimizer,
    MomentumOptimizer,
    Optimizer,
    RmsPropOptimizer,
)
from detloom.trainer_module.learning_rates import ConfiguredLearningRate

_NOT_DECAYED = ["bias", "beta", "gamma"]  # variable names; shrinking them only fights batch norm


def build_optimizer(config: Optimizer) -> keras.Optimizer:
    """The optimizer alone: gradients are clipped and weights averaged by the training loop."""
    learning_rate = ConfiguredLearningRate(config.learning_rate)
    match config:
        case MomentumOptimizer():
            return keras.optimizers.SGD(learning_rate, momentum=config.momentum, nesterov=config.nesterov)
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
