"""Decode the keypoint maps of CenterNet (arXiv:1904.07850, section 4.2), as `refine_keypoints` in the Object Detection
API.

Letters as in `detector.py`; also `M` detections, `P` keypoints of an object and `C` peaks of a kind of keypoint.
"""

import tensorflow as tf

from detloom.schemas.contracts.detections import KEYPOINT_SCORES, KEYPOINTS
from detloom.schemas.model.center_net import KeypointEstimation
from detloom.trainer_module.detectors.centernet.peaks import Centers, at_cells, find_peaks

_FAR = 1e5  # distance of no peak, in cells


def build_keypoints(
    task: KeypointEstimation,
    outputs: dict[str, tf.Tensor],
    centers: Centers,
    true_cells_hw_B2: tf.Tensor,
    has_keypoints_BM: tf.Tensor,
) -> dict[str, tf.Tensor]:
    """Return keypoints and their scores; see `schemas/contracts/detections.py`. Without clipping, they may be outside.

    Args:
        true_cells_hw_B2: float, rows and columns of the map that are image; keypoints are relative to this part.
        has_keypoints_BM: which detections have keypoints; those of others are 0, with score 0.
    """
    peaks_BCP2, scores_BCP = _peaks(task, outputs)
    regressed_BMP2 = _regressed(outputs["keypoint_regression_BHWQ"], centers)
    points_BMP2, scores_BMP = _refine(task, regressed_BMP2, peaks_BCP2, scores_BCP, centers.boxes_yxyx_BM4)
    points_rel_BMP2 = points_BMP2 / true_cells_hw_B2[:, tf.newaxis, tf.newaxis]
    if task.clip_out_of_frame_keypoints:
        clipped_BMP2 = tf.clip_by_value(points_rel_BMP2, 0.0, 1.0)
        scores_BMP = tf.where(tf.reduce_all(clipped_BMP2 == points_rel_BMP2, axis=-1), scores_BMP, 0.0)
        points_rel_BMP2 = clipped_BMP2
    has_keypoints_BM1 = has_keypoints_BM[..., tf.newaxis]
    return {
        KEYPOINTS: tf.where(has_keypoints_BM1[..., tf.newaxis], points_rel_BMP2, 0.0),
        KEYPOINT_SCORES: tf.where(has_keypoints_BM1, scores_BMP, 0.0),
    }


def _peaks(task: KeypointEstimation, outputs: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Return places [B, C, P, 2] in cells and scores [B, C, P] of the best peaks of each kind, by descending score."""
    logits_BHWP, offsets_BHWQ = outputs["keypoint_logits_BHWP"], outputs["keypoint_offsets_BHWQ"]
    batch_size = tf.shape(logits_BHWP)[0]
    height, width, num_kinds = logits_BHWP.shape[1:]
    peaks_BHWP = find_peaks(tf.sigmoid(logits_BHWP), task.peak_max_pool_kernel_size)
    peaks_BPN = tf.reshape(tf.transpose(peaks_BHWP, [0, 3, 1, 2]), [batch_size, num_kinds, height * width])
    scores_BPC, cell_BPC = tf.math.top_k(peaks_BPN, min(task.num_candidates_per_keypoint, height * width))
    num_pairs = offsets_BHWQ.shape[-1] // 2
    kind_P1 = tf.range(num_kinds)[:, tf.newaxis] if num_pairs > 1 else tf.zeros([num_kinds, 1], tf.int32)
    pairs_BN2 = tf.reshape(offsets_BHWQ, [batch_size, -1, 2])
    offset_BPC2 = tf.gather(pairs_BN2, cell_BPC * num_pairs + kind_P1, batch_dims=1)
    corner_BPC2 = tf.cast(tf.stack([cell_BPC // width, cell_BPC % width], axis=-1), tf.float32)
    return tf.transpose(corner_BPC2 + offset_BPC2, [0, 2, 1, 3]), tf.transpose(scores_BPC, [0, 2, 1])


def _regressed(regression_BHWQ: tf.Tensor, centers: Centers) -> tf.Tensor:
    """Return the keypoints [B, M, P, 2] that the objects' centres predict, in cells."""
    shift_BMQ = at_cells(regression_BHWQ, centers.cell_BM)
    num_centers, num_channels = shift_BMQ.shape[1:]
    shift_BMP2 = tf.reshape(shift_BMQ, [-1, num_centers, num_channels // 2, 2])
    return centers.corner_BM2[:, :, tf.newaxis] + shift_BMP2


def _refine(
    task: KeypointEstimation,
    regressed_BMP2: tf.Tensor,
    peaks_BCP2: tf.Tensor,
    scores_BCP: tf.Tensor,
    boxes_yxyx_BM4: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Move each keypoint to the nearest peak of its kind, if that is in the object's scaled box and near enough."""
    threshold = task.keypoint_candidate_score_threshold
    square_BMCP = tf.reduce_sum(tf.square(regressed_BMP2[:, :, tf.newaxis] - peaks_BCP2[:, tf.newaxis]), axis=-1)
    distance_BMCP = tf.where(scores_BCP[:, tf.newaxis] >= threshold, tf.sqrt(square_BMCP), _FAR)
    nearest_BMP = tf.argmin(distance_BMCP, axis=2, output_type=tf.int32)
    # [B, P, M] indices into [B, P, C]
    nearest_BPM = tf.transpose(nearest_BMP, [0, 2, 1])
    point_BPM2 = tf.gather(tf.transpose(peaks_BCP2, [0, 2, 1, 3]), nearest_BPM, batch_dims=2)
    score_BPM = tf.gather(tf.transpose(scores_BCP, [0, 2, 1]), nearest_BPM, batch_dims=2)
    point_BMP2, score_BMP = tf.transpose(point_BPM2, [0, 2, 1, 3]), tf.transpose(score_BPM, [0, 2, 1])
    first_BM2, last_BM2 = tf.split(boxes_yxyx_BM4, 2, axis=-1)
    middle_BM2, half_BM2 = (first_BM2 + last_BM2) / 2, (last_BM2 - first_BM2) * (task.box_scale / 2)
    low_BM12, high_BM12 = ((middle_BM2 + sign * half_BM2)[:, :, tf.newaxis] for sign in (-1, 1))
    longest_BM = tf.reduce_max(high_BM12 - low_BM12, axis=[2, 3])
    radius_BM1 = (longest_BM * task.candidate_search_scale)[..., tf.newaxis]
    is_confirmed_BMP = (
        tf.reduce_all((point_BMP2 >= low_BM12) & (point_BMP2 <= high_BM12), axis=-1)
        & (score_BMP >= threshold)
        & (tf.reduce_min(distance_BMCP, axis=2) <= radius_BM1)
    )
    return (
        tf.where(is_confirmed_BMP[..., tf.newaxis], point_BMP2, regressed_BMP2),
        tf.where(is_confirmed_BMP, score_BMP, task.unmatched_keypoint_score),
    )
