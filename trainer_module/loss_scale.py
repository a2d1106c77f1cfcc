"""The factor that keeps gradients in float16 from vanishing (arXiv:1710.03740, 3.2)."""

import tensorflow as tf

_FIRST = 2.0**15
_HIGHEST = 2.0**24  # beyond, float32 gradients say no more
_LOWEST = 1.0
_STEPS_TO_GROW = 2_000  # steps in a row without overflow, after which twice the factor is tried


class LossScale:
    """Grows while gradients stay finite and shrinks where they overflow; call the methods inside a `tf.function`.

    Make it in the strategy's scope.
    """

    def __init__(self) -> None:
        self.factor = tf.Variable(_FIRST, trainable=False)
        self.good_steps = tf.Variable(0, dtype=tf.int64, trainable=False)

    def can_shrink(self) -> tf.Tensor:
        """Whether an overflow is the factor's fault, as far as can be known."""
        return self.factor > _LOWEST

    def update(self, is_good: tf.Tensor) -> None:
        """After each step, not on a replica: whether its gradients were finite."""
        good_steps = tf.where(is_good, self.good_steps + 1, 0)
        grows = good_steps >= _STEPS_TO_GROW
        grown = tf.where(grows, tf.minimum(self.factor * 2, _HIGHEST), self.factor)
        self.factor.assign(tf.where(is_good, grown, tf.maximum(self.factor / 2, _LOWEST)))
        self.good_steps.assign(tf.where(grows, tf.zeros_like(good_steps), good_steps))
