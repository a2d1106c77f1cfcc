"""Losses of CenterNet (arXiv:1904.07850, equations 1 to 4)."""

import tensorflow as tf

from detloom.schemas.model.center_net import CenterNet
from detloom.schemas.model.losses import PenaltyReducedFocal, WeightedL1
from detloom.trainer_module.detectors.centernet.network import OUTPUTS, output_suffixes
from detloom.trainer_module.detectors.centernet.peaks import at_cells
from detloom.trainer_module.detectors.centernet.targets import CenterNetTargets

_LOWEST_PROBABILITY = 1e-4  # as in the reference; it and 1 minus it are the limits, so that the loss stays finite


def penalty_reduced_focal_loss(
    config: PenaltyReducedFocal, logits: tf.Tensor, targets: tf.Tensor, center_weights: tf.Tensor
) -> tf.Tensor:
    """Return the elementwise loss. Targets below 1 are background, with less weight the nearer they are to 1.

    Args:
        center_weights: factor of the loss where the target is 1.
    """
    probability = tf.clip_by_value(tf.sigmoid(logits), _LOWEST_PROBABILITY, 1 - _LOWEST_PROBABILITY)
    at_center = tf.pow(1 - probability, config.alpha) * tf.math.log(probability)
    elsewhere = tf.pow(1 - targets, config.beta) * tf.pow(probability, config.alpha) * tf.math.log(1 - probability)
    return -tf.where(targets == 1.0, center_weights * at_center, elsewhere)


def centernet_losses(
    config: CenterNet,
    targets: CenterNetTargets,
    outputs: dict[str, tf.Tensor],
    true_cells_hw_B2: tf.Tensor,
    num_boxes: tf.Tensor | None = None,
) -> dict[str, tf.Tensor]:
    """Return the scalars `class_loss`, `size_loss` and `offset_loss`, weighted and divided by the number of boxes.

    The losses of stacked hourglasses are averaged.

    Args:
        true_cells_hw_B2: rows and columns of the map that are image; the others have no loss.
        num_boxes: see `num_matches` in `Detector.losses`.
    """
    centers, boxes = config.object_center_params, config.object_detection_task
    assert isinstance(centers.classification_loss, PenaltyReducedFocal)
    assert isinstance(boxes.localization_loss, WeightedL1)
    is_image_BHW1 = cells_of_image(true_cells_hw_B2, outputs["class_logits_BHWK"].shape[1:3])
    class_losses, size_losses, offset_losses = [], [], []
    suffixes = output_suffixes(config.feature_extractor)
    for suffix in suffixes:
        logits_BHWK, sizes_BHW2, offsets_BHW2 = (outputs[f"{name}{suffix}"] for name in OUTPUTS)
        per_cell_BHWK = penalty_reduced_focal_loss(
            centers.classification_loss, logits_BHWK, targets.heatmap_BHWK, targets.center_weights_BHWK
        )
        class_losses.append(tf.reduce_sum(per_cell_BHWK * is_image_BHW1))
        size_losses.append(_l1_at_centers(sizes_BHW2, targets.size_BG2, targets))
        offset_losses.append(_l1_at_centers(offsets_BHW2, targets.offset_BG2, targets))
    num_boxes = tf.maximum(count_boxes(targets) if num_boxes is None else num_boxes, 1.0) * len(suffixes)
    return {
        "class_loss": centers.object_center_loss_weight * (tf.add_n(class_losses) / num_boxes),
        "size_loss": boxes.task_loss_weight * boxes.scale_loss_weight * (tf.add_n(size_losses) / num_boxes),
        "offset_loss": boxes.task_loss_weight * boxes.offset_loss_weight * (tf.add_n(offset_losses) / num_boxes),
    }


def count_boxes(targets: CenterNetTargets) -> tf.Tensor:
    """Return the normalizer of the losses, float32."""
    return tf.math.count_nonzero(targets.box_weight_BG, dtype=tf.float32)


def cells_of_image(true_cells_hw_B2: tf.Tensor, map_hw: tuple[int, int]) -> tf.Tensor:
    """Return a mask, float32 [B, H, W, 1]: 1 for cells that show image, 0 for padding."""
    rows_BH = tf.range(map_hw[0]) < true_cells_hw_B2[:, :1]
    columns_BW = tf.range(map_hw[1]) < true_cells_hw_B2[:, 1:]
    return tf.cast(rows_BH[:, :, tf.newaxis, tf.newaxis] & columns_BW[:, tf.newaxis, :, tf.newaxis], tf.float32)


def _l1_at_centers(map_BHW2: tf.Tensor, targets_BG2: tf.Tensor, targets: CenterNetTargets) -> tf.Tensor:
    """Return the sum over all boxes of the absolute error of the map at their centres."""
    return tf.reduce_sum(
        tf.abs(at_cells(map_BHW2, targets.cell_BG) - targets_BG2) * targets.box_weight_BG[..., tf.newaxis]
    )
