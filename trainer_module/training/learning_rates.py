"""Learning rates by step, from their configuration. Steps count from 0; rates are float32, computed in float32.

The first four schedules equal the Object Detection API's, the last three google/automl's EfficientDet, including the
order of operations: near the end of a cosine, a float32 value is mostly rounding error.
"""

import math
from typing import Any

import keras
import tensorflow as tf

from detloom.schemas.model.optimizers import (
    ConstantLearningRate,
    CosineDecayLearningRate,
    EfficientDetCosineLearningRate,
    EfficientDetStepwiseLearningRate,
    ExponentialDecayLearningRate,
    LearningRate,
    ManualStepLearningRate,
    PolynomialLearningRate,
)


class ConfiguredLearningRate(keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate of a configuration; `schedule(step)` is a float32 scalar."""

    def __init__(self, config: LearningRate) -> None:
        super().__init__()
        self.config = config

    def __call__(self, step: Any) -> tf.Tensor:
        return _rate_at(self.config, tf.cast(step, tf.int64))


@tf.autograph.experimental.do_not_convert  # AutoGraph does not support `match`
def _rate_at(config: LearningRate, step: tf.Tensor) -> tf.Tensor:
    match config:
        case ConstantLearningRate():
            return tf.constant(config.learning_rate, tf.float32)
        case ExponentialDecayLearningRate():
            return _exponential_decay(config, step)
        case ManualStepLearningRate():
            return _manual_step(config, step)
        case CosineDecayLearningRate():
            return _cosine_decay(config, step)
        case EfficientDetCosineLearningRate():
            decay_steps = float(config.total_steps - config.warmup_steps)
            cosine = tf.cos(math.pi * tf.cast(step, tf.float32) / decay_steps)
            return _after_warmup(config, step, 0.5 * config.learning_rate * (1 + cosine))
        case EfficientDetStepwiseLearningRate():
            factor = tf.where(step < config.first_drop_step, 1.0, tf.where(step < config.second_drop_step, 0.1, 0.01))
            return _after_warmup(config, step, config.learning_rate * factor)
        case PolynomialLearningRate():
            share = tf.minimum(tf.cast(step, tf.float32) / config.total_steps, 1.0)
            return _after_warmup(config, step, config.learning_rate * tf.pow(1 - share, config.power))
    raise AssertionError(f"no such learning rate: {config}")


def _exponential_decay(config: ExponentialDecayLearningRate, step: tf.Tensor) -> tf.Tensor:
    since_burnin = step - config.burnin_steps
    if config.staircase:
        num_decays = tf.cast(since_burnin // config.decay_steps, tf.float32)
    else:
        num_decays = tf.cast(since_burnin, tf.float32) / config.decay_steps
    decayed = config.initial_learning_rate * tf.pow(config.decay_factor, num_decays)
    burnin_rate = config.burnin_learning_rate or config.initial_learning_rate
    return tf.maximum(tf.where(since_burnin < 0, burnin_rate, decayed), config.min_learning_rate)


def _manual_step(config: ManualStepLearningRate, step: tf.Tensor) -> tf.Tensor:
    first = config.schedule[0]
    initial: tf.Tensor = tf.constant(config.initial_learning_rate, tf.float32)
    if config.warmup:
        slope = (first.learning_rate - config.initial_learning_rate) / first.step
        initial += slope * tf.cast(step, tf.float32)
    jumps_made = tf.reduce_sum(tf.cast(step >= [jump.step for jump in config.schedule], tf.int32))
    return tf.gather(tf.stack([initial, *(jump.learning_rate for jump in config.schedule)]), jumps_made)


def _cosine_decay(config: CosineDecayLearningRate, step: tf.Tensor) -> tf.Tensor:
    base, hold_until = config.learning_rate_base, config.warmup_steps + config.hold_base_rate_steps
    since_hold = tf.cast(step, tf.float32) - config.warmup_steps - config.hold_base_rate_steps
    decay_steps = float(max(config.total_steps - hold_until, 1))  # 0 where the rate is held until the end
    rate = 0.5 * base * (1 + tf.cos(math.pi * since_hold / decay_steps))
    rate = tf.where(step > hold_until, rate, base)
    if config.warmup_steps:
        slope = (base - config.warmup_learning_rate) / config.warmup_steps
        warming = slope * tf.cast(step, tf.float32) + config.warmup_learning_rate
        rate = tf.where(step < config.warmup_steps, warming, rate)
    return tf.where(step > config.total_steps, 0.0, rate)


def _after_warmup(
    config: EfficientDetCosineLearningRate | EfficientDetStepwiseLearningRate | PolynomialLearningRate,
    step: tf.Tensor,
    rate: tf.Tensor,
) -> tf.Tensor:
    """Return `rate`, or during warm-up the linear interpolation from `warmup_learning_rate` to the full rate."""
    if not config.warmup_steps:
        return rate
    initial = config.warmup_learning_rate
    warming = initial + tf.cast(step, tf.float32) / config.warmup_steps * (config.learning_rate - initial)
    return tf.where(step < config.warmup_steps, warming, rate)
