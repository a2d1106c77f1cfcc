"""Targets of the keypoint maps of CenterNet (arXiv:1904.07850, section 4.2), as in the Object Detection API's
`CenterNetKeypointTargetAssigner`.

Letters as in `targets.py`; also `P` keypoints of an object and `R` cells within `offset_peak_radius` of a cell.
"""

from typing import NamedTuple

import tensorflow as tf

from detloom.schemas.model.center_net import KeypointEstimation
from detloom.trainer_module.detectors.centernet.targets import gaussian_sigma

_MIN_IOU = 0.7  # of the standard deviation of a keypoint; fixed in the reference
_UNLABELLED = 1e-3  # a point with a lower weight hides its kind in the object's box, as in the reference


class KeypointTargets(NamedTuple):
    """All in cells.

    Attributes:
        heatmap_BHWP: 1 at the cell of a keypoint, decreasing around it, times the weight of the box.
        is_trained_BHWP: float32, 0 in the boxes of objects without a label of this keypoint, which includes the objects
            of all other classes.
        num_points_B: float32, sum of the weights of each kind of keypoint, rounded down, added up.
        around_points, around_centers: the trained cells of offsets and regression.
    """

    heatmap_BHWP: tf.Tensor
    is_trained_BHWP: tf.Tensor
    num_points_B: tf.Tensor
    around_points: "TrainedCells"
    around_centers: "TrainedCells"


class TrainedCells(NamedTuple):
    """Cells around something, for each keypoint.

    Attributes:
        cell_BGPR: int32, row-major index; 0 outside the map.
        to_point_BGPR2: from the corner of the cell to the keypoint, y and x.
        weight_BGPR: 0 outside the map, for unlabelled keypoints and in padding.
    """

    cell_BGPR: tf.Tensor
    to_point_BGPR2: tf.Tensor
    weight_BGPR: tf.Tensor


def assign_keypoint_targets(
    task: KeypointEstimation,
    boxes_yxyx_rel_BG4: tf.Tensor,
    class_indices_BG: tf.Tensor,
    keypoints_yx_rel_BGP2: tf.Tensor,
    box_weights_BG: tf.Tensor | None = None,
    *,
    map_hw: tuple[int, int],
    class_index: int,
) -> KeypointTargets:
    """Compute targets from boxes and keypoints relative to the network input, padded with class index -1.

    Args:
        keypoints_yx_rel_BGP2: NaN where not labelled.
        class_index: of the objects that have keypoints; those of other objects do not count.
    """
    is_labelled_BGP = ~tf.math.is_nan(keypoints_yx_rel_BGP2[..., 0])
    weight_BG = tf.cast(class_indices_BG == class_index, tf.float32)
    if box_weights_BG is not None:
        weight_BG *= box_weights_BG
    weight_BGP = tf.cast(is_labelled_BGP, tf.float32) * weight_BG[..., tf.newaxis]
    map_hw_2 = tf.constant(map_hw, tf.float32)
    is_number_BGP2 = ~tf.math.is_nan(keypoints_yx_rel_BGP2)
    points_BGP2 = tf.where(is_number_BGP2, keypoints_yx_rel_BGP2, 0.0) * map_hw_2
    is_box_BG1 = class_indices_BG[..., tf.newaxis] >= 0
    boxes_yxyx_BG4 = tf.where(is_box_BG1, boxes_yxyx_rel_BG4, 0.0) * tf.tile(map_hw_2, [2])
    first_BG2, last_BG2 = tf.split(boxes_yxyx_BG4, 2, axis=-1)
    size_BG2 = last_BG2 - first_BG2
    stds_P = tf.constant([point.std for point in task.points])
    sigma_BGP = gaussian_sigma(size_BG2, _MIN_IOU)[..., tf.newaxis] * stds_P
    center_BG12 = (first_BG2 + size_BG2 / 2)[:, :, tf.newaxis]
    radius = task.offset_peak_radius
    return KeypointTargets(
        heatmap_BHWP=_heatmap(tf.floor(points_BGP2), sigma_BGP, weight_BGP, map_hw),
        is_trained_BHWP=_outside_boxes(boxes_yxyx_BG4, weight_BGP < _UNLABELLED, map_hw),
        num_points_B=tf.reduce_sum(tf.floor(tf.reduce_sum(weight_BGP, axis=1)), axis=-1),
        around_points=_cells_around(points_BGP2, points_BGP2, weight_BGP, radius, map_hw),
        around_centers=_cells_around(center_BG12, points_BGP2, weight_BGP, radius, map_hw),
    )


def _heatmap(corner_BGP2: tf.Tensor, sigma_BGP: tf.Tensor, weight_BGP: tf.Tensor, map_hw: tuple[int, int]) -> tf.Tensor:
    """Return the heat map [B, H, W, P]; where Gaussians of a kind overlap, the maximum counts.

    The kinds are computed one after another: all Gaussians of a batch would need gigabytes.
    """

    def of_kind(values: tuple[tf.Tensor, tf.Tensor, tf.Tensor]) -> tf.Tensor:
        corner_BG2, sigma_BG, weight_BG = values
        distance_BGH, distance_BGW = (
            tf.range(map_hw[side], dtype=tf.float32) - corner_BG2[..., side, tf.newaxis] for side in (0, 1)
        )
        square_BGHW = tf.square(distance_BGH)[..., tf.newaxis] + tf.square(distance_BGW)[..., tf.newaxis, :]
        gaussian_BGHW = tf.exp(-square_BGHW / (2 * tf.square(sigma_BG))[..., tf.newaxis, tf.newaxis])
        largest_BHW = tf.reduce_max(gaussian_BGHW * weight_BG[..., tf.newaxis, tf.newaxis], axis=1)
        return tf.maximum(largest_BHW, 0.0)  # no box: not the lowest float

    by_kind = (
        tf.transpose(corner_BGP2, [2, 0, 1, 3]),
        tf.transpose(sigma_BGP, [2, 0, 1]),
        tf.transpose(weight_BGP, [2, 0, 1]),
    )
    heatmap_PBHW = tf.map_fn(of_kind, by_kind, parallel_iterations=1, fn_output_signature=tf.float32)
    return tf.transpose(heatmap_PBHW, [1, 2, 3, 0])


def _outside_boxes(boxes_yxyx_BG4: tf.Tensor, is_hidden_BGP: tf.Tensor, map_hw: tuple[int, int]) -> tf.Tensor:
    """Return 0 for the cells of each kind that are in a box in which the kind is hidden, else 1, [B, H, W, P]."""
    first_BG2, last_BG2 = tf.split(boxes_yxyx_BG4[..., tf.newaxis], 2, axis=2)

    def is_in_box(side: int) -> tf.Tensor:
        """Return a mask [B, G, H or W] of rows or columns."""
        cells = tf.range(map_hw[side], dtype=tf.float32)
        return tf.cast((cells >= first_BG2[:, :, side]) & (cells < last_BG2[:, :, side]), tf.float32)

    hidden_BGHP = is_in_box(0)[..., tf.newaxis] * tf.cast(is_hidden_BGP, tf.float32)[:, :, tf.newaxis]
    num_boxes_BHWP = tf.einsum("bghp,bgw->bhwp", hidden_BGHP, is_in_box(1))  # whole numbers, exact in float32
    return tf.cast(num_boxes_BHWP < 0.5, tf.float32)


def _cells_around(
    place_BGP2: tf.Tensor, points_BGP2: tf.Tensor, weight_BGP: tf.Tensor, radius: int, map_hw: tuple[int, int]
) -> TrainedCells:
    """Return the cells of the map within a radius of the cell of a place."""
    steps_R2 = [
        (y, x)
        for y in range(-radius, radius + 1)
        for x in range(-radius, radius + 1)
        if y * y + x * x <= radius * radius
    ]
    corner_BGPR2 = tf.floor(place_BGP2)[..., tf.newaxis, :] + tf.constant(steps_R2, tf.float32)
    is_inside_BGPR = tf.reduce_all((corner_BGPR2 >= 0) & (corner_BGPR2 < tf.constant(map_hw, tf.float32)), axis=-1)
    corner_BGPR2 = tf.where(is_inside_BGPR[..., tf.newaxis], corner_BGPR2, 0.0)
    weight_BGPR = tf.cast(is_inside_BGPR, tf.float32) * weight_BGP[..., tf.newaxis]
    cell_2 = tf.cast(corner_BGPR2, tf.int32)
    return TrainedCells(
        # All keypoints of an object have the same cells around its centre.
        cell_BGPR=tf.broadcast_to(cell_2[..., 0] * map_hw[1] + cell_2[..., 1], tf.shape(weight_BGPR)),
        to_point_BGPR2=points_BGP2[..., tf.newaxis, :] - corner_BGPR2,
        weight_BGPR=weight_BGPR,
    )
