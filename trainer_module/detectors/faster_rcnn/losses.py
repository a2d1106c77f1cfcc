"""Targets and losses of both stages of Faster R-CNN (arXiv:1506.01497, equation 1).

As in the reference, each image's losses are divided by the number of its sampled anchors, or of its proposals, and then
by the number of images. Boxes are in pixels of the network's input.
"""

import tensorflow as tf

from detloom.schemas.model.detector import ArgMaxMatcher
from detloom.schemas.model.faster_rcnn import FasterRcnn
from detloom.schemas.model.losses import WeightedSmoothL1, WeightedSoftmax
from detloom.trainer_module.boxes.crops import crop_masks
from detloom.trainer_module.boxes.losses import box_losses, class_losses, hard_examples
from detloom.trainer_module.boxes.targets import Targets, TargetSettings, assign_targets
from detloom.trainer_module.detectors.faster_rcnn.proposals import BOX_CODER
from detloom.trainer_module.detectors.faster_rcnn.sampling import sample_balanced

# The reference's settings, which no file can change (`create_target_assigner`).
_PROPOSAL_TARGETS = TargetSettings(
    matcher=ArgMaxMatcher(matched_threshold=0.7, unmatched_threshold=0.3, force_match_for_each_row=True),
    box_coder=BOX_CODER,
    first_class_channel=1,
    background_channel=0,
)
_DETECTION_TARGETS = TargetSettings(
    matcher=ArgMaxMatcher(matched_threshold=0.5, unmatched_threshold=0.5),
    box_coder=BOX_CODER,
    first_class_channel=1,
    background_channel=0,
)
_BOX_LOSS = WeightedSmoothL1()


def proposal_targets(
    anchors_yxyx_px_A4: tf.Tensor, boxes_yxyx_px_BG4: tf.Tensor, class_indices_BG: tf.Tensor, weights_BG: tf.Tensor
) -> Targets:
    """Assign targets to anchors; every object has class channel 1."""
    objects_BG = tf.minimum(class_indices_BG, 0)
    return assign_targets(_PROPOSAL_TARGETS, anchors_yxyx_px_A4, boxes_yxyx_px_BG4, objects_BG, weights_BG)


def detection_targets(
    proposals_yxyx_px_BP4: tf.Tensor, boxes_yxyx_px_BG4: tf.Tensor, class_indices_BG: tf.Tensor, weights_BG: tf.Tensor
) -> Targets:
    """Assign targets to proposals; padding is background."""
    return assign_targets(_DETECTION_TARGETS, proposals_yxyx_px_BP4, boxes_yxyx_px_BG4, class_indices_BG, weights_BG)


def sample_anchors(config: FasterRcnn, targets: Targets, random_BA: tf.Tensor) -> tf.Tensor:
    """Choose the anchors that count in the losses of the first stage, bool [B, A]."""
    return sample_balanced(
        targets.class_weight_BA != 0,
        targets.channel_BA > 0,
        random_BA,
        batch_size=config.first_stage_minibatch_size,
        positive_fraction=config.first_stage_positive_balance_fraction,
    )


def sample_proposals(
    config: FasterRcnn, targets: Targets, is_proposal_BP: tf.Tensor, random_BP: tf.Tensor
) -> tf.Tensor:
    """Choose the proposals that train the second stage, bool [B, P]."""
    return sample_balanced(
        is_proposal_BP & (targets.class_weight_BA > 0),
        targets.channel_BA > 0,
        random_BP,
        batch_size=config.second_stage_batch_size,
        positive_fraction=config.second_stage_balance_fraction,
    )


def first_stage_losses(
    config: FasterRcnn,
    anchors_yxyx_px_A4: tf.Tensor,
    targets: Targets,
    is_sampled_BA: tf.Tensor,
    rpn_offsets_BA4: tf.Tensor,
    objectness_logits_BA2: tf.Tensor,
) -> dict[str, tf.Tensor]:
    """Return the weighted losses, float32 scalars: sums over the images."""
    sampled_BA = tf.cast(is_sampled_BA, tf.float32)
    counted = targets._replace(class_weight_BA=sampled_BA, box_weight_BA=targets.box_weight_BA * sampled_BA)
    objectness_BA = class_losses(WeightedSoftmax(), objectness_logits_BA2, counted)
    box_BA = box_losses(_BOX_LOSS, BOX_CODER, anchors_yxyx_px_A4, rpn_offsets_BA4, counted)
    num_sampled_B1 = tf.maximum(tf.reduce_sum(sampled_BA, axis=1, keepdims=True), 1.0)
    objectness_loss = tf.reduce_sum(objectness_BA / num_sampled_B1)
    box_loss = tf.reduce_sum(box_BA / num_sampled_B1)
    return {
        "rpn_objectness_loss": config.first_stage_objectness_loss_weight * objectness_loss,
        "rpn_box_loss": config.first_stage_localization_loss_weight * box_loss,
    }


def second_stage_losses(
    config: FasterRcnn,
    proposals_yxyx_px_BP4: tf.Tensor,
    num_proposals_B: tf.Tensor,
    targets: Targets,
    offsets_BPQ4: tf.Tensor,
    class_logits_BPC: tf.Tensor,
) -> dict[str, tf.Tensor]:
    """Return the weighted losses, float32 scalars: sums over the images."""
    offsets_BP4 = offsets_BPQ4[:, :, 0]
    if offsets_BPQ4.shape[2] > 1:  # one box per class: that of the target's class
        offsets_BP4 = tf.gather(offsets_BPQ4, tf.maximum(targets.channel_BA - 1, 0), batch_dims=2)
    is_proposal_BP = tf.range(proposals_yxyx_px_BP4.shape[1]) < num_proposals_B[:, tf.newaxis]
    counts_BP = tf.cast(is_proposal_BP, tf.float32)
    num_proposals_B1 = tf.cast(tf.maximum(num_proposals_B, 1), tf.float32)[:, tf.newaxis]
    class_BP = class_losses(config.second_stage_classification_loss, class_logits_BPC, targets)
    box_BP = box_losses(_BOX_LOSS, BOX_CODER, proposals_yxyx_px_BP4, offsets_BP4, targets)
    class_BP, box_BP = (loss * counts_BP / num_proposals_B1 for loss in (class_BP, box_BP))
    class_weight = config.second_stage_classification_loss_weight
    box_weight = config.second_stage_localization_loss_weight
    if config.hard_example_miner is not None:
        is_hard_BP = hard_examples(
            config.hard_example_miner,
            proposals_yxyx_px_BP4,
            class_BP,
            box_BP,
            targets.match_BA,
            class_weight=class_weight,
            box_weight=box_weight,
        )
        class_BP, box_BP = class_BP * is_hard_BP, box_BP * is_hard_BP
    return {"class_loss": class_weight * tf.reduce_sum(class_BP), "box_loss": box_weight * tf.reduce_sum(box_BP)}


def mask_loss(
    config: FasterRcnn,
    masks_BGHW: tf.Tensor,
    boxes_yxyx_rel_BN4: tf.Tensor,
    weights_BN: tf.Tensor,
    targets: Targets,
    mask_logits_BNhwL: tf.Tensor,
) -> tf.Tensor:
    """Return the weighted loss of the masks, a float32 scalar: the mean over the cells of all positive boxes.

    The target of a box is the part of its object's mask that it covers; only the logits of the object's class count
    (arXiv:1703.06870, section 3).

    Args:
        masks_BGHW: uint8 masks of the ground truth, as large as the network's input.
        boxes_yxyx_rel_BN4: regions that the logits are for, relative to the network's input.
        weights_BN: weight of each region, 0 for padding; it is multiplied by that of its object.
        targets: of the regions.
    """
    mask_hw = mask_logits_BNhwL.shape[2:4]
    target_BNhw = crop_masks(masks_BGHW, tf.maximum(targets.match_BA, 0), boxes_yxyx_rel_BN4, mask_hw)
    num_masks = mask_logits_BNhwL.shape[-1]
    if num_masks == 1:
        logits_BNhw = mask_logits_BNhwL[..., 0]
    else:
        is_class_BNL = tf.one_hot(targets.channel_BA - 1, num_masks)
        logits_BNhw = tf.einsum("bnhwl,bnl->bnhw", mask_logits_BNhwL, is_class_BNL)
    loss_BNhw = tf.nn.sigmoid_cross_entropy_with_logits(labels=target_BNhw, logits=logits_BNhw)
    weights_BN = weights_BN * targets.box_weight_BA
    total = tf.reduce_sum(loss_BNhw * weights_BN[..., tf.newaxis, tf.newaxis])
    num_cells = tf.maximum(tf.reduce_sum(weights_BN) * float(mask_hw[0] * mask_hw[1]), 1.0)
    return config.second_stage_mask_prediction_loss_weight * total / num_cells
