"""Which anchors count in the loss (arXiv:1604.03540; the ratio of negatives: SSD, arXiv:1512.02325, 2.2)."""

import tensorflow as tf

from detloom.schemas.model_config import HardExampleMiner, Loss
from detloom.trainer_module.matcher import BACKGROUND


def hard_examples(
    loss: Loss, boxes_yxyx_BA4: tf.Tensor, class_loss_BA: tf.Tensor, box_loss_BA: tf.Tensor, match_BA: tf.Tensor
) -> tf.Tensor:
    """[B, A] float32, 1 for the anchors that count: the chosen ones of each picture on its own. Has no gradient.

    Args:
        boxes_yxyx_BA4: decoded predictions, among which non-maximum suppression by loss chooses.
    """
    assert loss.hard_example_miner is not None
    miner = loss.hard_example_miner
    ranked_BA = {
        "CLASSIFICATION": class_loss_BA,
        "LOCALIZATION": box_loss_BA,
        "BOTH": class_loss_BA * loss.classification_weight + box_loss_BA * loss.localization_weight,
    }[miner.loss_type]

    def choose(picture: tuple[tf.Tensor, tf.Tensor, tf.Tensor]) -> tf.Tensor:
        return _choose_in_picture(miner, *picture)

    chosen_BA = tf.map_fn(
        choose,
        (tf.stop_gradient(boxes_yxyx_BA4), tf.stop_gradient(ranked_BA), match_BA),
        fn_output_signature=tf.TensorSpec([class_loss_BA.shape[1]], tf.float32),
    )
    return tf.stop_gradient(chosen_BA)


def _choose_in_picture(
    miner: HardExampleMiner, boxes_yxyx_A4: tf.Tensor, loss_A: tf.Tensor, match_A: tf.Tensor
) -> tf.Tensor:
    num_anchors = loss_A.shape[0]
    limit = min(miner.num_hard_examples or num_anchors, num_anchors)
    anchor_N, num_chosen = tf.image.non_max_suppression_padded(
        boxes_yxyx_A4, loss_A, limit, miner.iou_threshold, pad_to_max_output_size=True
    )
    is_chosen_N = tf.range(limit) < num_chosen  # from the highest loss to the lowest, then padding
    if miner.max_negatives_per_positive > 0:
        match_N = tf.gather(match_A, anchor_N)
        is_positive_N = (match_N >= 0) & is_chosen_N
        num_positives = tf.math.count_nonzero(is_positive_N, dtype=tf.int32)
        most = tf.maximum(miner.min_negatives_per_image, miner.max_negatives_per_positive * num_positives)
        is_negative_N = (match_N == BACKGROUND) & is_chosen_N
        # As the reference: ignored anchors stay for as long as the negatives before them are within the limit.
        is_chosen_N &= is_positive_N | (tf.cumsum(tf.cast(is_negative_N, tf.int32)) <= most)
    return tf.scatter_nd(anchor_N[:, tf.newaxis], tf.cast(is_chosen_N, tf.float32), [num_anchors])
