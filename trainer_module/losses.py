"""The training loss of a single-shot detector, from its raw outputs and padded ground truth."""

from typing import NamedTuple

import tensorflow as tf

from detloom.schemas.model_config import (
    ClassificationLoss,
    LocalizationLoss,
    SigmoidFocal,
    Ssd,
    WeightedL2,
    WeightedSigmoid,
    WeightedSmoothL1,
)
from detloom.trainer_module.box_coder import encode_boxes
from detloom.trainer_module.boxes import pairwise_iou
from detloom.trainer_module.matcher import IGNORED, match_anchors


class Targets(NamedTuple):
    """What each anchor should say; `B` images, `A` anchors, `C` class channels (see `ssd.py`).

    Attributes:
        offsets_BA4: box offsets, 0 where the anchor is not foreground.
        classes_BAC: float32, 1 in the channel of the anchor's class; background and ignored anchors have 0 in all, or 1
            in the background's if `encode_background_as_zeros` is off.
        is_foreground_BA: float32 0 or 1, weight in the box loss.
        class_weight_BA: float32 0 for ignored anchors, else 1.
    """

    offsets_BA4: tf.Tensor
    classes_BAC: tf.Tensor
    is_foreground_BA: tf.Tensor
    class_weight_BA: tf.Tensor


def assign_targets(
    config: Ssd,
    anchors_yxyx_rel_A4: tf.Tensor,
    boxes_yxyx_rel_BG4: tf.Tensor,
    class_indices_BG: tf.Tensor,
    num_classes: int,
) -> Targets:
    """Targets from ground truth padded with `class_index` -1."""
    iou_BGA = pairwise_iou(boxes_yxyx_rel_BG4, anchors_yxyx_rel_A4)
    match_BA = match_anchors(config.matcher, iou_BGA, class_indices_BG >= 0)
    is_foreground_BA = match_BA >= 0
    index_BA = tf.maximum(match_BA, 0)
    matched_boxes_BA4 = tf.gather(boxes_yxyx_rel_BG4, index_BA, batch_dims=1)
    matched_class_BA = tf.gather(class_indices_BG, index_BA, batch_dims=1)
    # One-hot of -1 is all zeros.
    if config.add_background_class:
        background = -1 if config.encode_background_as_zeros else 0
        channel_BA = tf.where(is_foreground_BA, matched_class_BA + 1, background)
    else:
        channel_BA = tf.where(is_foreground_BA, matched_class_BA, -1)
    offsets_BA4 = encode_boxes(config.box_coder, matched_boxes_BA4, anchors_yxyx_rel_A4)
    return Targets(
        offsets_BA4=tf.where(is_foreground_BA[..., tf.newaxis], offsets_BA4, 0.0),
        classes_BAC=tf.one_hot(channel_BA, num_classes + int(config.add_background_class)),
        is_foreground_BA=tf.cast(is_foreground_BA, tf.float32),
        class_weight_BA=tf.cast(match_BA != IGNORED, tf.float32),
    )


def sigmoid_focal_loss(logits: tf.Tensor, targets: tf.Tensor, *, alpha: float | None, gamma: float) -> tf.Tensor:
    """Elementwise focal loss (arXiv:1708.02002, equation 5; without alpha, equation 4); same shape as `logits`."""
    probability = tf.sigmoid(logits)
    cross_entropy = tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=logits)
    miss = targets * (1 - probability) + (1 - targets) * probability
    loss = tf.pow(miss, gamma) * cross_entropy
    return loss if alpha is None else (targets * alpha + (1 - targets) * (1 - alpha)) * loss


def huber_loss(errors: tf.Tensor, *, delta: float) -> tf.Tensor:
    """Elementwise Huber loss: quadratic up to `delta`, linear beyond."""
    size = tf.abs(errors)
    return tf.where(size <= delta, 0.5 * tf.square(size), delta * size - 0.5 * delta**2)


@tf.autograph.experimental.do_not_convert  # AutoGraph does not know `match`
def classification_loss(config: ClassificationLoss, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Elementwise; same shape as `logits`."""
    match config:
        case WeightedSigmoid():
            return tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=logits)
        case SigmoidFocal():
            return sigmoid_focal_loss(logits, targets, alpha=config.alpha, gamma=config.gamma)
    raise AssertionError(f"no such classification loss: {config}")


@tf.autograph.experimental.do_not_convert  # AutoGraph does not know `match`
def localization_loss(config: LocalizationLoss, errors: tf.Tensor) -> tf.Tensor:
    """Elementwise; same shape as `errors`, the differences of offsets."""
    match config:
        case WeightedL2():
            return 0.5 * tf.square(errors)
        case WeightedSmoothL1():
            return huber_loss(errors, delta=config.delta)
    raise AssertionError(f"no such localization loss: {config}")


def detection_losses(
    config: Ssd, targets: Targets, offsets_BA4: tf.Tensor, class_logits_BAC: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Scalars `class_loss` and `box_loss`, in float32, weighted and normalized: sums over the batch, not means."""
    per_logit = classification_loss(
        config.loss.classification_loss, tf.cast(class_logits_BAC, tf.float32), targets.classes_BAC
    )
    per_offset = localization_loss(
        config.loss.localization_loss, tf.cast(offsets_BA4, tf.float32) - targets.offsets_BA4
    )
    class_loss = tf.reduce_sum(per_logit * targets.class_weight_BA[..., tf.newaxis])
    box_loss = tf.reduce_sum(per_offset * targets.is_foreground_BA[..., tf.newaxis])
    if config.normalize_loss_by_num_matches:
        num_foreground = tf.maximum(tf.reduce_sum(targets.is_foreground_BA), 1.0)
        class_loss, box_loss = class_loss / num_foreground, box_loss / num_foreground
    if config.normalize_loc_loss_by_codesize:
        box_loss /= 4
    return {
        "class_loss": config.loss.classification_weight * class_loss,
        "box_loss": config.loss.localization_weight * box_loss,
    }
