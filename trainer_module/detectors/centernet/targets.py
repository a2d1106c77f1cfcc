"""Targets of the CenterNet maps from padded ground truth (arXiv:1904.07850, section 3)."""

from typing import NamedTuple

import tensorflow as tf


class CenterNetTargets(NamedTuple):
    """`B` images, `G` padded boxes, `H W` cells of the heat map, `K` classes; all in cells.

    Attributes:
        heatmap_BHWK: 1 at the cell of an object centre, decreasing around it; 0 far from all centres.
        cell_BG: int32, row-major index of the centre's cell; 0 in padding.
        size_BG2: height and width.
        offset_BG2: from the corner of the cell to the centre, y and x.
        box_weight_BG: float32, 0 in padding.
        center_weights_BHWK: factor of the loss at object centres; the scalar 1 unless images were mixed.
    """

    heatmap_BHWK: tf.Tensor
    cell_BG: tf.Tensor
    size_BG2: tf.Tensor
    offset_BG2: tf.Tensor
    box_weight_BG: tf.Tensor
    center_weights_BHWK: tf.Tensor


def assign_centernet_targets(
    boxes_yxyx_rel_BG4: tf.Tensor,
    class_indices_BG: tf.Tensor,
    box_weights_BG: tf.Tensor | None = None,
    image_shares_BG: tf.Tensor | None = None,
    *,
    map_hw: tuple[int, int],
    num_classes: int,
    min_iou: float,
) -> CenterNetTargets:
    """Compute targets from boxes relative to the network input, padded with class index -1.

    The Gaussian of a box is multiplied by its weight, as in the reference; without weights every box has weight 1.

    Args:
        image_shares_BG: of mixed images. They are weights of losses only: the reference takes a cell as a centre where
            the Gaussian is exactly 1, so that a lower Gaussian would make background of the object's centre.
        min_iou: a box of the same size that overlaps the object by this IoU is hardly penalized.
    """
    is_box_BG = class_indices_BG >= 0
    box_weight_BG = tf.cast(is_box_BG, tf.float32)
    if box_weights_BG is not None:
        box_weight_BG *= box_weights_BG
    map_hw_2 = tf.constant(map_hw, tf.float32)
    boxes_yxyx_BG4 = tf.where(is_box_BG[..., tf.newaxis], boxes_yxyx_rel_BG4, 0.0) * tf.tile(map_hw_2, [2])
    first_BG2, last_BG2 = tf.split(boxes_yxyx_BG4, 2, axis=-1)
    size_BG2 = last_BG2 - first_BG2
    center_BG2 = first_BG2 + size_BG2 / 2
    corner_BG2 = tf.floor(center_BG2)
    inside_BG2 = tf.cast(tf.clip_by_value(corner_BG2, 0.0, map_hw_2 - 1), tf.int32)
    sigma_BG = gaussian_sigma(size_BG2, min_iou)
    center_weights_BHWK = tf.ones([])
    if image_shares_BG is not None:
        center_weights_BHWK = _at_centers(image_shares_BG, inside_BG2, class_indices_BG, map_hw, num_classes)
    return CenterNetTargets(
        heatmap_BHWK=_heatmap(corner_BG2, sigma_BG, box_weight_BG, class_indices_BG, map_hw, num_classes),
        cell_BG=inside_BG2[..., 0] * map_hw[1] + inside_BG2[..., 1],
        size_BG2=size_BG2,
        offset_BG2=center_BG2 - corner_BG2,
        box_weight_BG=box_weight_BG if image_shares_BG is None else box_weight_BG * image_shares_BG,
        center_weights_BHWK=center_weights_BHWK,
    )


def _at_centers(
    values_BG: tf.Tensor, cell_BG2: tf.Tensor, class_indices_BG: tf.Tensor, map_hw: tuple[int, int], num_classes: int
) -> tf.Tensor:
    """Return a map [B, H, W, K] with the largest value at each centre, 0 elsewhere. Padding has value 0."""
    batch_size, num_boxes = tf.shape(cell_BG2)[0], tf.shape(cell_BG2)[1]
    image_BG = tf.tile(tf.range(batch_size)[:, tf.newaxis], [1, num_boxes])
    where_BG4 = tf.stack([image_BG, cell_BG2[..., 0], cell_BG2[..., 1], tf.maximum(class_indices_BG, 0)], axis=-1)
    nothing = tf.zeros([batch_size, *map_hw, num_classes])
    return tf.tensor_scatter_nd_max(nothing, where_BG4, values_BG)


def gaussian_sigma(size_BG2: tf.Tensor, min_iou: float) -> tf.Tensor:
    """Return the standard deviation [B, G] of the Gaussian around object centres, from height and width.

    It is a third of the distance by which both corners may move in y and x at an IoU of `min_iou`: the minimum for a
    shifted, a smaller and a larger box. As in the code of the paper and in the reference, the root of
    a r^2 + b r + c = 0 is computed as (-b + sqrt(b^2 - 4 a c)) / 2, independent of a.
    """
    total, area = tf.reduce_sum(size_BG2, axis=-1), tf.reduce_prod(size_BG2, axis=-1)
    shifted = _larger_root(1.0, -total, area * (1 - min_iou) / (1 + min_iou))
    smaller = _larger_root(4.0, -2 * total, area * (1 - min_iou))
    larger = _larger_root(4 * min_iou, 2 * min_iou * total, area * (min_iou - 1))
    radius = tf.floor(tf.minimum(tf.minimum(shifted, smaller), larger))
    return (2 * tf.maximum(radius, 0.0) + 1) / 6


def _larger_root(a: float, b: tf.Tensor, c: tf.Tensor) -> tf.Tensor:
    return (-b + tf.sqrt(tf.square(b) - 4 * a * c)) / 2


def _heatmap(
    corner_BG2: tf.Tensor,
    sigma_BG: tf.Tensor,
    box_weight_BG: tf.Tensor,
    class_indices_BG: tf.Tensor,
    map_hw: tuple[int, int],
    num_classes: int,
) -> tf.Tensor:
    """Return the heat map [B, H, W, K]; where Gaussians of a class overlap, the maximum counts."""
    batch_size, num_boxes = tf.shape(corner_BG2)[0], tf.shape(corner_BG2)[1]

    def along(side: int) -> tf.Tensor:
        """Return the factor [B, G, H or W] along a side; the Gaussian is the product of both."""
        distance = tf.range(map_hw[side], dtype=tf.float32) - corner_BG2[..., side, tf.newaxis]
        return tf.exp(-tf.square(distance) / (2 * tf.square(sigma_BG[..., tf.newaxis])))

    gaussian_BGHW = along(0)[..., tf.newaxis] * along(1)[..., tf.newaxis, :]
    gaussian_BGHW *= box_weight_BG[..., tf.newaxis, tf.newaxis]
    # One segment for each image and class, and one more for padding, which is dropped.
    num_segments = batch_size * num_classes
    first_of_image = tf.range(batch_size)[:, tf.newaxis] * num_classes
    segment_BG = tf.where(class_indices_BG >= 0, first_of_image + class_indices_BG, num_segments)
    flat = tf.reshape(gaussian_BGHW, [batch_size * num_boxes, *map_hw])
    largest = tf.math.unsorted_segment_max(flat, tf.reshape(segment_BG, [-1]), num_segments + 1)[:-1]
    heatmap_BKHW = tf.reshape(
        tf.maximum(largest, 0.0), [batch_size, num_classes, *map_hw]
    )  # no box: not the lowest float
    return tf.transpose(heatmap_BKHW, [0, 2, 3, 1])
