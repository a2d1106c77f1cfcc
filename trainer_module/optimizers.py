"""Optimizers and learning rates from their configuration."""

import keras

from detloom.schemas.config import AdamW, ConstantRate, CosineRate, Momentum, Training

_NOT_DECAYED = ["bias", "beta", "gamma"]  # variable names; shrinking them only fights batch norm


def build_optimizer(training: Training) -> keras.Optimizer:
    """With clipping by global norm and a moving average of the weights, where the configuration asks for them."""
    settings = {
        "learning_rate": build_learning_rate(training.optimizer.rate, training.num_steps),
        "global_clipnorm": training.clip_norm,
        "use_ema": training.ema_decay is not None,
        "ema_momentum": training.ema_decay or 0.99,
    }
    match training.optimizer:
        case Momentum(momentum=momentum):
            return keras.optimizers.SGD(momentum=momentum, **settings)
        case AdamW(weight_decay=weight_decay):
            optimizer = keras.optimizers.AdamW(weight_decay=weight_decay, **settings)
            optimizer.exclude_from_weight_decay(var_names=_NOT_DECAYED)
            return optimizer
    raise AssertionError(f"no such optimizer: {training.optimizer}")


def build_learning_rate(
    rate: ConstantRate | CosineRate, num_steps: int
) -> float | keras.optimizers.schedules.LearningRateSchedule:
    match rate:
        case ConstantRate(learning_rate=learning_rate):
            return learning_rate
        case CosineRate(warmup_steps=0):
            return keras.optimizers.schedules.CosineDecay(rate.learning_rate, num_steps)
        case CosineRate():
            return keras.optimizers.schedules.CosineDecay(
                rate.warmup_learning_rate,
                decay_steps=max(num_steps - rate.warmup_steps, 1),
                warmup_target=rate.learning_rate,
                warmup_steps=rate.warmup_steps,
            )
    raise AssertionError(f"no such learning rate: {rate}")
