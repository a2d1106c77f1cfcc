"""The training loss of a single-shot detector, from its raw outputs and the targets of its anchors."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from detloom.schemas.model_config import (
    ClassificationLoss,
    SigmoidFocal,
    Ssd,
    WeightedCiou,
    WeightedGiou,
    WeightedIou,
    WeightedL2,
    WeightedSigmoid,
    WeightedSmoothL1,
    WeightedSoftmax,
)
from detloom.trainer_module.box_coder import decode_boxes
from detloom.trainer_module.boxes import ciou, giou, iou
from detloom.trainer_module.hard_examples import hard_examples
from detloom.trainer_module.targets import Targets
from detloom.trainer_module.xla import compiled_on_cpu

CODE_SIZE = 4  # numbers of a box


def detection_losses(
    config: Ssd,
    anchors_yxyx_rel_A4: tf.Tensor,
    targets: Targets,
    offsets_BA4: tf.Tensor,
    class_logits_BAC: tf.Tensor,
    num_matches: tf.Tensor | None = None,
) -> dict[str, tf.Tensor]:
    """Scalars `class_loss` and `box_loss`, in float32, weighted and normalized: sums over the batch, not means.

    Args:
        num_matches: of `count_matches`, of a larger batch that this one is a part of; None: of this batch.
    """
    args = (
        config,
        anchors_yxyx_rel_A4,
        targets,
        tf.cast(offsets_BA4, tf.float32),
        tf.cast(class_logits_BAC, tf.float32),
        count_matches(targets) if num_matches is None else num_matches,
    )
    # XLA does non-maximum suppression with an [A, A] matrix.
    class_loss, box_loss = _losses(*args) if config.loss.hard_example_miner is not None else _fused_losses(*args)
    return {"class_loss": class_loss, "box_loss": box_loss}


def count_matches(targets: Targets) -> tf.Tensor:
    """What the losses are divided by, float32: the anchors with an object, each as often as its box weighs."""
    return tf.reduce_sum(targets.box_weight_BA)


def _fused_losses(
    config: Ssd,
    anchors_yxyx_rel_A4: tf.Tensor,
    targets: Targets,
    offsets_BA4: tf.Tensor,
    class_logits_BAC: tf.Tensor,
    num_matches: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """`_losses`, with the gradients computed beside the values: both need the same exponentials of [B, A, C]."""

    @tf.custom_gradient
    def losses(offsets_BA4: tf.Tensor, class_logits_BAC: tf.Tensor) -> tuple[Any, Callable[..., Any]]:
        values, (by_offsets, by_logits) = _losses_and_gradients(
            config, anchors_yxyx_rel_A4, targets, offsets_BA4, class_logits_BAC, num_matches
        )
        return values, lambda of_class_loss, of_box_loss: (of_box_loss * by_offsets, of_class_loss * by_logits)

    class_loss, box_loss = losses(offsets_BA4, class_logits_BAC)
    return class_loss, box_loss


@compiled_on_cpu
def _losses_and_gradients(
    config: Ssd,
    anchors_yxyx_rel_A4: tf.Tensor,
    targets: Targets,
    offsets_BA4: tf.Tensor,
    class_logits_BAC: tf.Tensor,
    num_matches: tf.Tensor,
) -> tuple[tuple[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """(class_loss, box_loss), (gradient of box_loss by offsets, gradient of class_loss by logits)."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([offsets_BA4, class_logits_BAC])
        class_loss, box_loss = _losses(config, anchors_yxyx_rel_A4, targets, offsets_BA4, class_logits_BAC, num_matches)
    return (class_loss, box_loss), (tape.gradient(box_loss, offsets_BA4), tape.gradient(class_loss, class_logits_BAC))


def _losses(
    config: Ssd,
    anchors_yxyx_rel_A4: tf.Tensor,
    targets: Targets,
    offsets_BA4: tf.Tensor,
    class_logits_BAC: tf.Tensor,
    num_matches: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    class_loss_BA = class_losses(config.loss.classification_loss, class_logits_BAC, targets)
    box_loss_BA = box_losses(config, anchors_yxyx_rel_A4, offsets_BA4, targets)
    if config.loss.hard_example_miner is not None:
        boxes_BA4 = decode_boxes(config.box_coder, offsets_BA4, anchors_yxyx_rel_A4)
        is_hard_BA = hard_examples(config.loss, boxes_BA4, class_loss_BA, box_loss_BA, targets.match_BA)
        class_loss_BA, box_loss_BA = class_loss_BA * is_hard_BA, box_loss_BA * is_hard_BA
    normalizer = tf.constant(1.0)
    if config.normalize_loss_by_num_matches:
        normalizer = tf.maximum(num_matches, 1.0)
    box_normalizer = normalizer * CODE_SIZE if config.normalize_loc_loss_by_codesize else normalizer
    return (
        config.loss.classification_weight / normalizer * tf.reduce_sum(class_loss_BA),
        config.loss.localization_weight / box_normalizer * tf.reduce_sum(box_loss_BA),
    )


@tf.autograph.experimental.do_not_convert  # AutoGraph does not know `match`
def class_losses(config: ClassificationLoss, logits_BAC: tf.Tensor, targets: Targets) -> tf.Tensor:
    """[B, A], weighted. One-hot of channel -1 is all zeros."""
    wanted_BAC = tf.one_hot(targets.channel_BA, logits_BAC.shape[-1])
    match config:
        case WeightedSigmoid():
            per_logit = tf.nn.sigmoid_cross_entropy_with_logits(labels=wanted_BAC, logits=logits_BAC)
            return tf.reduce_sum(per_logit * targets.class_weight_BA[..., tf.newaxis], axis=-1)
        case SigmoidFocal():
            per_logit = sigmoid_focal_loss(logits_BAC, wanted_BAC, alpha=config.alpha, gamma=config.gamma)
            return tf.reduce_sum(per_logit * targets.class_weight_BA[..., tf.newaxis], axis=-1)
        case WeightedSoftmax():
            scaled_BAC = logits_BAC / config.logit_scale
            return tf.nn.softmax_cross_entropy_with_logits(wanted_BAC, scaled_BAC) * targets.class_weight_BA
    raise AssertionError(f"no such classification loss: {config}")


def sigmoid_focal_loss(logits: tf.Tensor, targets: tf.Tensor, *, alpha: float | None, gamma: float) -> tf.Tensor:
    """Elementwise focal loss (arXiv:1708.02002, equation 5; without alpha, equation 4); same shape as `logits`.

    Args:
        targets: 0 or 1, nothing between.
    """
    cross_entropy = tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=logits)
    # What is missing from the right answer, 1 - p_t, is the sigmoid of minus the right logit: its logarithm is at hand.
    log_miss = (1 - 2 * targets) * logits - cross_entropy
    loss = tf.exp(gamma * log_miss) * cross_entropy
    return loss if alpha is None else (targets * alpha + (1 - targets) * (1 - alpha)) * loss


@tf.autograph.experimental.do_not_convert  # AutoGraph does not know `match`
def box_losses(config: Ssd, anchors_yxyx_rel_A4: tf.Tensor, offsets_BA4: tf.Tensor, targets: Targets) -> tf.Tensor:
    """[B, A], weighted. An offset whose target is NaN, because it is not known, costs nothing."""
    weight_BA, weight_BA1 = targets.box_weight_BA, targets.box_weight_BA[..., tf.newaxis]
    errors_BA4 = tf.where(tf.math.is_nan(targets.offsets_BA4), 0.0, offsets_BA4 - targets.offsets_BA4)
    similarity: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    match config.loss.localization_loss:
        case WeightedL2():
            return 0.5 * tf.reduce_sum(tf.square(errors_BA4 * weight_BA1), axis=-1)  # as the reference: weight squared
        case WeightedSmoothL1(delta=delta):
            return tf.reduce_sum(huber_loss(errors_BA4, delta=delta) * weight_BA1, axis=-1)
        case WeightedIou():
            similarity = iou
        case WeightedGiou():
            similarity = giou
        case WeightedCiou():
            similarity = ciou
        case other:
            raise AssertionError(f"no such localization loss: {other}")
    # Where there is no box to learn, both sides are the anchor: an offset that overflows there must not make a NaN.
    safe_BA4 = tf.where(weight_BA1 > 0, offsets_BA4, targets.offsets_BA4)
    predicted_BA4, wanted_BA4 = (
        decode_boxes(config.box_coder, offsets, anchors_yxyx_rel_A4) for offsets in (safe_BA4, targets.offsets_BA4)
    )
    return weight_BA * (1 - similarity(predicted_BA4, wanted_BA4))


def huber_loss(errors: tf.Tensor, *, delta: float) -> tf.Tensor:
    """Elementwise Huber loss: quadratic up to `delta`, linear beyond."""
    size = tf.abs(errors)
    return tf.where(size <= delta, 0.5 * tf.square(size), delta * size - 0.5 * delta**2)
