"""Scale and clip gradients; dynamic loss scale for float16 gradients (arXiv:1710.03740, section 3.2)."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from detloom.schemas.model.optimizers import ClipByGlobalNorm, ClipEachThenGlobalNorm, GradientClipping

_FIRST_LOSS_SCALE = 2.0**15
_MAX_LOSS_SCALE = 2.0**24  # a larger factor gains nothing for float32 gradients
_MIN_LOSS_SCALE = 1.0
_STEPS_TO_DOUBLE = 2_000  # consecutive steps without overflow before the factor is doubled


def scale_bias_gradients(
    gradients: Sequence[tf.Tensor], variables: Sequence[keras.Variable], factor: float
) -> list[tf.Tensor]:
    """Return the gradients with those of biases multiplied by `factor`."""
    if factor == 1:
        return list(gradients)
    pairs = zip(gradients, variables, strict=True)
    return [gradient * factor if variable.name == "bias" else gradient for gradient, variable in pairs]


def gradient_norms(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the norms, float32 [number of gradients]."""
    return tf.sqrt(2 * tf.stack([tf.nn.l2_loss(tf.cast(gradient, tf.float32)) for gradient in gradients]))


@tf.autograph.experimental.do_not_convert  # AutoGraph does not support `match`
def clip_gradients(
    clipping: GradientClipping | None, gradients: Sequence[tf.Tensor], norms: tf.Tensor
) -> list[tf.Tensor]:
    """Return the clipped gradients in the same order.

    Args:
        norms: result of `gradient_norms`.
    """
    match clipping:
        case None:
            return list(gradients)
        case ClipByGlobalNorm(norm=limit):
            factor = limit / tf.maximum(tf.norm(norms), limit)
            return [gradient * factor for gradient in gradients]
        case ClipEachThenGlobalNorm(norm=limit):
            clipped = tf.minimum(norms, limit)
            factors = limit / tf.maximum(norms, limit) * (limit / tf.maximum(tf.norm(clipped), limit))
            return [gradient * factor for gradient, factor in zip(gradients, tf.unstack(factors), strict=True)]
    raise AssertionError(f"no such clipping: {clipping}")


class LossScale:
    """Grows while gradients are finite and shrinks on overflow; call the methods inside a `tf.function`.

    Create it in the strategy's scope.
    """

    def __init__(self) -> None:
        self.factor = tf.Variable(_FIRST_LOSS_SCALE, trainable=False)
        self.good_steps = tf.Variable(0, dtype=tf.int64, trainable=False)

    @property
    def state(self) -> dict[str, tf.Variable]:
        """The variables by their names in a checkpoint."""
        return {"loss_scale": self.factor, "num_good_steps": self.good_steps}

    def can_shrink(self) -> tf.Tensor:
        """Return whether a smaller factor could avoid an overflow."""
        return self.factor > _MIN_LOSS_SCALE

    def update(self, is_good: tf.Tensor, is_counted: tf.Tensor) -> None:
        """Update the factor after a step, in cross-replica context.

        Args:
            is_good: the gradients were finite.
            is_counted: if False, nothing is changed.
        """
        good_steps = tf.where(is_good, self.good_steps + 1, 0)
        grows = good_steps >= _STEPS_TO_DOUBLE
        grown = tf.where(grows, tf.minimum(self.factor * 2, _MAX_LOSS_SCALE), self.factor)
        factor = tf.where(is_good, grown, tf.maximum(self.factor / 2, _MIN_LOSS_SCALE))
        good_steps = tf.where(grows, tf.zeros_like(good_steps), good_steps)
        self.factor.assign(tf.where(is_counted, factor, self.factor))
        self.good_steps.assign(tf.where(is_counted, good_steps, self.good_steps))
