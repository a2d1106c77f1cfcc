"""The training loss of a single-shot detector, from its raw outputs and padded ground truth."""

from typing import NamedTuple

import tensorflow as tf

from detloom.schemas.config import BoxCoder, Losses, Matcher
from detloom.trainer_module.box_coder import encode_boxes
from detloom.trainer_module.boxes import pairwise_iou
from detloom.trainer_module.matcher import IGNORED, match_anchors


class Targets(NamedTuple):
    """What each anchor should say; `B` images, `A` anchors, `K` classes.

    Attributes:
        offsets_BA4: box offsets, 0 where the anchor is not foreground.
        classes_BAK: one-hot float32, all 0 for background and ignored anchors.
        is_foreground_BA: float32 0 or 1, weight in the box loss.
        class_weight_BA: float32 0 for ignored anchors, else 1.
    """

    offsets_BA4: tf.Tensor
    classes_BAK: tf.Tensor
    is_foreground_BA: tf.Tensor
    class_weight_BA: tf.Tensor


def assign_targets(
    matcher: Matcher,
    coder: BoxCoder,
    anchors_yxyx_rel_A4: tf.Tensor,
    boxes_yxyx_rel_BG4: tf.Tensor,
    class_indices_BG: tf.Tensor,
    num_classes: int,
) -> Targets:
    """Targets from ground truth padded with `class_index` -1."""
    iou_BGA = pairwise_iou(boxes_yxyx_rel_BG4, anchors_yxyx_rel_A4)
    match_BA = match_anchors(matcher, iou_BGA, class_indices_BG >= 0)
    is_foreground_BA = match_BA >= 0
    index_BA = tf.maximum(match_BA, 0)
    matched_boxes_BA4 = tf.gather(boxes_yxyx_rel_BG4, index_BA, batch_dims=1)
    matched_class_BA = tf.where(is_foreground_BA, tf.gather(class_indices_BG, index_BA, batch_dims=1), -1)
    offsets_BA4 = encode_boxes(coder, matched_boxes_BA4, anchors_yxyx_rel_A4)
    return Targets(
        offsets_BA4=tf.where(is_foreground_BA[..., tf.newaxis], offsets_BA4, 0.0),
        classes_BAK=tf.one_hot(matched_class_BA, num_classes),
        is_foreground_BA=tf.cast(is_foreground_BA, tf.float32),
        class_weight_BA=tf.cast(match_BA != IGNORED, tf.float32),
    )


def sigmoid_focal_loss(logits: tf.Tensor, targets: tf.Tensor, *, alpha: float, gamma: float) -> tf.Tensor:
    """Elementwise focal loss (arXiv:1708.02002, equation 5); same shape as `logits`."""
    probability = tf.sigmoid(logits)
    cross_entropy = tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=logits)
    miss = targets * (1 - probability) + (1 - targets) * probability
    balance = targets * alpha + (1 - targets) * (1 - alpha)
    return balance * tf.pow(miss, gamma) * cross_entropy


def huber_loss(errors: tf.Tensor, *, delta: float) -> tf.Tensor:
    """Elementwise Huber loss: quadratic up to `delta`, linear beyond."""
    size = tf.abs(errors)
    return tf.where(size <= delta, 0.5 * tf.square(size), delta * size - 0.5 * delta**2)


def detection_losses(
    losses: Losses, targets: Targets, offsets_BA4: tf.Tensor, class_logits_BAK: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Scalars `class_loss`, `box_loss` and their sum `loss`, in float32.

    Both are sums over the batch divided by its number of foreground anchors (at least 1); the box loss also by the
    four numbers of a box, as `normalize_loc_loss_by_codesize` does in the reference.
    """
    logits = tf.cast(class_logits_BAK, tf.float32)
    focal = sigmoid_focal_loss(logits, targets.classes_BAK, alpha=losses.focal_alpha, gamma=losses.focal_gamma)
    huber = huber_loss(tf.cast(offsets_BA4, tf.float32) - targets.offsets_BA4, delta=losses.huber_delta)
    num_foreground = tf.maximum(tf.reduce_sum(targets.is_foreground_BA), 1.0)
    class_loss = tf.reduce_sum(focal * targets.class_weight_BA[..., tf.newaxis]) / num_foreground
    box_loss = tf.reduce_sum(huber * targets.is_foreground_BA[..., tf.newaxis]) / (4 * num_foreground)
    class_loss *= losses.class_weight
    box_loss *= losses.box_weight
    return {"loss": class_loss + box_loss, "class_loss": class_loss, "box_loss": box_loss}
