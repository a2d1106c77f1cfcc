"""Losses of the keypoints of CenterNet (arXiv:1904.07850, section 4.2), as in the Object Detection API."""

import tensorflow as tf

from detloom.schemas.model.center_net import CenterNet
from detloom.schemas.model.losses import PenaltyReducedFocal
from detloom.trainer_module.detectors.centernet.keypoint_targets import KeypointTargets, TrainedCells
from detloom.trainer_module.detectors.centernet.losses import cells_of_image, penalty_reduced_focal_loss
from detloom.trainer_module.detectors.centernet.network import KEYPOINT_OUTPUTS, output_suffixes

KEYPOINT_LOSSES = ("keypoint_heatmap_loss", "keypoint_offset_loss", "keypoint_regression_loss")


def keypoint_losses(
    config: CenterNet,
    targets: KeypointTargets,
    outputs: dict[str, tf.Tensor],
    true_cells_hw_B2: tf.Tensor,
    num_matches_3: tf.Tensor | None = None,
) -> dict[str, tf.Tensor]:
    """Return the scalars of `KEYPOINT_LOSSES`, weighted and divided by their normalizers.

    The losses of stacked hourglasses are averaged.

    Args:
        true_cells_hw_B2: rows and columns of the map that are image; the others have no loss of the heat map.
        num_matches_3: of `count_keypoints`; see `num_matches` in `Detector.losses`.
    """
    task = config.keypoint_estimation_task
    assert task is not None
    focal = task.loss.classification_loss
    assert isinstance(focal, PenaltyReducedFocal)
    is_image_BHW1 = cells_of_image(true_cells_hw_B2, outputs["class_logits_BHWK"].shape[1:3])
    is_trained_BHWP = is_image_BHW1 * targets.is_trained_BHWP
    sums: list[tf.Tensor] = []
    suffixes = output_suffixes(config.feature_extractor)
    for suffix in suffixes:
        logits_BHWP, offsets_BHWQ, regression_BHWQ = (outputs[f"{name}{suffix}"] for name in KEYPOINT_OUTPUTS)
        per_cell_BHWP = penalty_reduced_focal_loss(focal, logits_BHWP, targets.heatmap_BHWP, tf.ones([]))
        heatmap = tf.reduce_sum(per_cell_BHWP * is_trained_BHWP)
        offset = _l1_at_cells(offsets_BHWQ, targets.around_points)
        regression = _l1_at_cells(regression_BHWQ, targets.around_centers)
        sums.append(tf.stack([heatmap, offset, regression]))
    num_matches_3 = count_keypoints(targets) if num_matches_3 is None else num_matches_3
    means_3 = tf.add_n(sums) / (tf.maximum(num_matches_3, 1.0) * len(suffixes))
    weights = (
        task.keypoint_heatmap_loss_weight,
        task.keypoint_offset_loss_weight,
        task.keypoint_regression_loss_weight,
    )
    return {
        name: task.task_loss_weight * weight * mean
        for name, weight, mean in zip(KEYPOINT_LOSSES, weights, tf.unstack(means_3), strict=True)
    }


def count_keypoints(targets: KeypointTargets) -> tf.Tensor:
    """Return the normalizers [3] of `KEYPOINT_LOSSES`, float32."""
    return tf.stack(
        [
            tf.reduce_sum(targets.num_points_B),
            tf.reduce_sum(targets.around_points.weight_BGPR),
            tf.reduce_sum(targets.around_centers.weight_BGPR),
        ]
    )


def _l1_at_cells(map_BHWQ: tf.Tensor, cells: TrainedCells) -> tf.Tensor:
    """Return the weighted sum of the absolute errors of a map with two channels, for all or for each keypoint."""
    num_kinds = cells.weight_BGPR.shape[2]
    num_pairs = map_BHWQ.shape[-1] // 2
    # Row-major [cell, kind of keypoint]; with one pair of channels, the kinds share it.
    kind_P1 = tf.range(num_kinds)[:, tf.newaxis] if num_pairs > 1 else tf.zeros([num_kinds, 1], tf.int32)
    place_BGPR = cells.cell_BGPR * num_pairs + kind_P1
    pairs_BN2 = tf.reshape(map_BHWQ, [tf.shape(map_BHWQ)[0], -1, 2])
    predicted_BGPR2 = tf.gather(pairs_BN2, place_BGPR, batch_dims=1)
    error_BGPR = tf.reduce_sum(tf.abs(predicted_BGPR2 - cells.to_point_BGPR2), axis=-1)
    return tf.reduce_sum(error_BGPR * cells.weight_BGPR)
