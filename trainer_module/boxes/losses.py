"""Losses of anchors from raw outputs and targets, and hard example mining."""

from collections.abc import Callable

import tensorflow as tf

from detloom.schemas.model.detector import BoxCoder
from detloom.schemas.model.losses import (
    ClassificationLoss,
    HardExampleMiner,
    LocalizationLoss,
    SigmoidFocal,
    WeightedCiou,
    WeightedGiou,
    WeightedIou,
    WeightedL2,
    WeightedSigmoid,
    WeightedSmoothL1,
    WeightedSoftmax,
)
from detloom.trainer_module.boxes.box_coder import decode_boxes
from detloom.trainer_module.boxes.geometry import ciou, giou, iou
from detloom.trainer_module.boxes.matcher import BACKGROUND
from detloom.trainer_module.boxes.targets import Targets


@tf.autograph.experimental.do_not_convert  # AutoGraph does not support `match`
def class_losses(loss: ClassificationLoss, logits_BAC: tf.Tensor, targets: Targets) -> tf.Tensor:
    """Return the weighted class losses [B, A]. The one-hot vector of channel -1 is zero."""
    targets_BAC = tf.one_hot(targets.channel_BA, logits_BAC.shape[-1])
    match loss:
        case WeightedSigmoid():
            per_logit = tf.nn.sigmoid_cross_entropy_with_logits(labels=targets_BAC, logits=logits_BAC)
            return tf.reduce_sum(per_logit * targets.class_weight_BA[..., tf.newaxis], axis=-1)
        case SigmoidFocal():
            per_logit = sigmoid_focal_loss(logits_BAC, targets_BAC, alpha=loss.alpha, gamma=loss.gamma)
            return tf.reduce_sum(per_logit * targets.class_weight_BA[..., tf.newaxis], axis=-1)
        case WeightedSoftmax():
            scaled_BAC = logits_BAC / loss.logit_scale
            return tf.nn.softmax_cross_entropy_with_logits(targets_BAC, scaled_BAC) * targets.class_weight_BA
    raise AssertionError(f"no such classification loss: {loss}")


def sigmoid_focal_loss(logits: tf.Tensor, targets: tf.Tensor, *, alpha: float | None, gamma: float) -> tf.Tensor:
    """Return the elementwise focal loss (arXiv:1708.02002, equation 5; without alpha, equation 4).

    Args:
        targets: 0 or 1, nothing in between.
    """
    cross_entropy = tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=logits)
    # log(1 - p_t) is the log-sigmoid of minus the logit of the target, which the cross-entropy gives.
    log_miss = (1 - 2 * targets) * logits - cross_entropy
    loss = tf.exp(gamma * log_miss) * cross_entropy
    return loss if alpha is None else (targets * alpha + (1 - targets) * (1 - alpha)) * loss


@tf.autograph.experimental.do_not_convert  # AutoGraph does not support `match`
def box_losses(
    loss: LocalizationLoss, coder: BoxCoder, anchors_yxyx_A4: tf.Tensor, offsets_BA4: tf.Tensor, targets: Targets
) -> tf.Tensor:
    """Return the weighted box losses [B, A]. An offset whose target is NaN (unknown) has no loss."""
    weight_BA, weight_BA1 = targets.box_weight_BA, targets.box_weight_BA[..., tf.newaxis]
    errors_BA4 = tf.where(tf.math.is_nan(targets.offsets_BA4), 0.0, offsets_BA4 - targets.offsets_BA4)
    similarity: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    match loss:
        case WeightedL2():
            return 0.5 * tf.reduce_sum(tf.square(errors_BA4 * weight_BA1), axis=-1)  # weight squared, as the reference
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
    # Without a target box, both sides are the anchor, so that an offset that overflows cannot cause a NaN.
    safe_BA4 = tf.where(weight_BA1 > 0, offsets_BA4, targets.offsets_BA4)
    predicted_BA4, target_BA4 = (
        decode_boxes(coder, offsets, anchors_yxyx_A4) for offsets in (safe_BA4, targets.offsets_BA4)
    )
    return weight_BA * (1 - similarity(predicted_BA4, target_BA4))


def huber_loss(errors: tf.Tensor, *, delta: float) -> tf.Tensor:
    """Return the elementwise Huber loss: quadratic up to `delta`, linear beyond."""
    size = tf.abs(errors)
    return tf.where(size <= delta, 0.5 * tf.square(size), delta * size - 0.5 * delta**2)


def hard_examples(
    miner: HardExampleMiner,
    boxes_yxyx_BA4: tf.Tensor,
    class_loss_BA: tf.Tensor,
    box_loss_BA: tf.Tensor,
    match_BA: tf.Tensor,
    *,
    class_weight: float,
    box_weight: float,
) -> tf.Tensor:
    """Choose the anchors of each image that count in the loss: 1 or 0, float32 [B, A], without gradient.

    Source: arXiv:1604.03540; the ratio of negatives is that of SSD (arXiv:1512.02325, section 2.2).

    Args:
        boxes_yxyx_BA4: decoded predictions, to which non-maximum suppression by loss is applied.
        class_weight, box_weight: weights of the two losses, for `loss_type` BOTH.
    """
    ranked_BA = {
        "CLASSIFICATION": class_loss_BA,
        "LOCALIZATION": box_loss_BA,
        "BOTH": class_loss_BA * class_weight + box_loss_BA * box_weight,
    }[miner.loss_type]

    def choose(image: tuple[tf.Tensor, tf.Tensor, tf.Tensor]) -> tf.Tensor:
        return _choose_in_image(miner, *image)

    chosen_BA = tf.map_fn(
        choose,
        (tf.stop_gradient(boxes_yxyx_BA4), tf.stop_gradient(ranked_BA), match_BA),
        fn_output_signature=tf.TensorSpec([class_loss_BA.shape[1]], tf.float32),
    )
    return tf.stop_gradient(chosen_BA)


def _choose_in_image(
    miner: HardExampleMiner, boxes_yxyx_A4: tf.Tensor, loss_A: tf.Tensor, match_A: tf.Tensor
) -> tf.Tensor:
    num_anchors = loss_A.shape[0]
    limit = min(miner.num_hard_examples or num_anchors, num_anchors)
    anchor_N, num_chosen = tf.image.non_max_suppression_padded(
        boxes_yxyx_A4, loss_A, limit, miner.iou_threshold, pad_to_max_output_size=True
    )
    is_chosen_N = tf.range(limit) < num_chosen  # in descending order of loss, then padding
    if miner.max_negatives_per_positive > 0:
        match_N = tf.gather(match_A, anchor_N)
        is_positive_N = (match_N >= 0) & is_chosen_N
        num_positives = tf.math.count_nonzero(is_positive_N, dtype=tf.int32)
        most = tf.maximum(miner.min_negatives_per_image, miner.max_negatives_per_positive * num_positives)
        is_negative_N = (match_N == BACKGROUND) & is_chosen_N
        # As in the reference, ignored anchors stay as long as the negatives before them are within the limit.
        is_chosen_N &= is_positive_N | (tf.cumsum(tf.cast(is_negative_N, tf.int32)) <= most)
    return tf.scatter_nd(anchor_N[:, tf.newaxis], tf.cast(is_chosen_N, tf.float32), [num_anchors])
