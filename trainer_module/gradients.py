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


@tf.autograph.experimental.do_not_convert  # AutoGraph does not know `match`
def clip_gradients(
    clipping: GradientClipping | None, gradients: Sequence[tf.Tensor]
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The gradients within the limit, in the same order, and their joint norm before, a float32 scalar."""
    norm = tf.linalg.global_norm(gradients)
    match clipping:
        case None:
            return list(gradients), norm
        case ClipByGlobalNorm():
            return tf.clip_by_global_norm(gradients, clipping.norm, use_norm=norm)[0], norm
        case ClipEachThenGlobalNorm():
            each = [tf.clip_by_norm(gradient, clipping.norm) for gradient in gradients]
            return tf.clip_by_global_norm(each, clipping.norm)[0], norm
    raise AssertionError(f"no such clipping: {clipping}")
