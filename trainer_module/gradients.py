"""Limits on gradients."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from detloom.schemas.optimizer_config import ClipByGlobalNorm, ClipEachThenGlobalNorm, GradientClipping


def scale_bias_gradients(
    gradients: Sequence[tf.Tensor], variables: Sequence[keras.Variable], factor: float
) -> list[tf.Tensor]:
    """The gradients of biases times a factor, the others as they are."""
    if factor == 1:
        return list(gradients)
    pairs = zip(gradients, variables, strict=True)
    return [gradient * factor if variable.name == "bias" else gradient for gradient, variable in pairs]


def gradient_norms(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """Float32 [number of gradients]."""
    return tf.sqrt(2 * tf.stack([tf.nn.l2_loss(tf.cast(gradient, tf.float32)) for gradient in gradients]))


@tf.autograph.experimental.do_not_convert  # AutoGraph does not know `match`
def clip_gradients(
    clipping: GradientClipping | None, gradients: Sequence[tf.Tensor], norms: tf.Tensor
) -> list[tf.Tensor]:
    """The gradients within the limit, in the same order.

    Args:
        norms: their norms, as `gradient_norms` gives them.
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
