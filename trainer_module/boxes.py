"""Boxes in tensors: the only place where their formats are converted, and the geometry on them.

The metrics, which must not need TensorFlow, convert to COCO's format themselves (`coco_metrics.py`).

`_yxyx` is (ymin, xmin, ymax, xmax); `_cyxhw` is (centre y, centre x, height, width); `_rel` is relative to the image,
0 to 1; `_px` is pixels.
"""

import math

import tensorflow as tf


def yxyx_to_cyxhw(boxes_yxyx: tf.Tensor) -> tf.Tensor:
    """[..., 4] corners to centre and size; unit unchanged."""
    ymin, xmin, ymax, xmax = tf.unstack(boxes_yxyx, axis=-1)
    return tf.stack([(ymin + ymax) / 2, (xmin + xmax) / 2, ymax - ymin, xmax - xmin], axis=-1)


def cyxhw_to_yxyx(boxes_cyxhw: tf.Tensor) -> tf.Tensor:
    """[..., 4] centre and size to corners; unit unchanged."""
    y, x, height, width = tf.unstack(boxes_cyxhw, axis=-1)
    return tf.stack([y - height / 2, x - width / 2, y + height / 2, x + width / 2], axis=-1)


def area(boxes_yxyx: tf.Tensor) -> tf.Tensor:
    """[...] area; an inverted box has none."""
    ymin, xmin, ymax, xmax = tf.unstack(boxes_yxyx, axis=-1)
    return tf.maximum(ymax - ymin, 0) * tf.maximum(xmax - xmin, 0)


def intersection(boxes1_yxyx: tf.Tensor, boxes2_yxyx: tf.Tensor) -> tf.Tensor:
    """[...] overlap of boxes in the same places; leading dimensions broadcast."""
    ymin1, xmin1, ymax1, xmax1 = tf.unstack(boxes1_yxyx, axis=-1)
    ymin2, xmin2, ymax2, xmax2 = tf.unstack(boxes2_yxyx, axis=-1)
    height = tf.maximum(tf.minimum(ymax1, ymax2) - tf.maximum(ymin1, ymin2), 0)
    width = tf.maximum(tf.minimum(xmax1, xmax2) - tf.maximum(xmin1, xmin2), 0)
    return height * width


def iou(boxes1_yxyx: tf.Tensor, boxes2_yxyx: tf.Tensor) -> tf.Tensor:
    """[...] intersection over union of boxes in the same places; 0 where the union has no area."""
    shared = intersection(boxes1_yxyx, boxes2_yxyx)
    return tf.math.divide_no_nan(shared, area(boxes1_yxyx) + area(boxes2_yxyx) - shared)


def pairwise_iou(boxes1_yxyx_N4: tf.Tensor, boxes2_yxyx_M4: tf.Tensor) -> tf.Tensor:
    """[..., N, M] the same of every pair; leading dimensions broadcast."""
    return iou(boxes1_yxyx_N4[..., :, tf.newaxis, :], boxes2_yxyx_M4[..., tf.newaxis, :, :])


def giou(boxes1_yxyx: tf.Tensor, boxes2_yxyx: tf.Tensor) -> tf.Tensor:
    """[...] generalized IoU, -1 to 1 (arXiv:1902.09630): IoU less the share of the hull that neither box covers.

    0 where the hull has no area.
    """
    shared = intersection(boxes1_yxyx, boxes2_yxyx)
    union = area(boxes1_yxyx) + area(boxes2_yxyx) - shared
    height, width = hull_sides(boxes1_yxyx, boxes2_yxyx)
    hull = height * width
    return tf.math.divide_no_nan(shared, union) - tf.math.divide_no_nan(hull - union, hull)


def ciou(boxes1_yxyx: tf.Tensor, boxes2_yxyx: tf.Tensor) -> tf.Tensor:
    """[...] complete IoU (arXiv:1911.08287, equations 7 to 11): IoU less penalties of distance and aspect ratio.

    The gradient is that of the paper's own code: constant weight of the aspect ratio's penalty, and none of the
    denominators that explode for small boxes (their equation 12).
    """
    y1, x1, height1, width1 = tf.unstack(yxyx_to_cyxhw(boxes1_yxyx), axis=-1)
    y2, x2, height2, width2 = tf.unstack(yxyx_to_cyxhw(boxes2_yxyx), axis=-1)
    hull_height, hull_width = hull_sides(boxes1_yxyx, boxes2_yxyx)
    distance = tf.math.divide_no_nan(
        tf.square(y1 - y2) + tf.square(x1 - x2), tf.square(hull_height) + tf.square(hull_width)
    )
    difference = 0.0
    for height, width, sign in ((height1, width1, 1), (height2, width2, -1)):
        damping = tf.stop_gradient(tf.square(height) + tf.square(width))
        angle = tf.atan2(width, tf.maximum(height, 1e-8))  # of no sides at all it has no gradient
        difference += sign * (tf.stop_gradient(angle * (1 - damping)) + angle * damping)
    penalty = 4 / math.pi**2 * tf.square(difference)
    overlap = iou(boxes1_yxyx, boxes2_yxyx)
    weight = tf.stop_gradient(tf.math.divide_no_nan(penalty, 1 - overlap + penalty))
    return overlap - distance - weight * penalty


def hull_sides(boxes1_yxyx: tf.Tensor, boxes2_yxyx: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """[...] height and width of the smallest box that holds both."""
    ymin1, xmin1, ymax1, xmax1 = tf.unstack(boxes1_yxyx, axis=-1)
    ymin2, xmin2, ymax2, xmax2 = tf.unstack(boxes2_yxyx, axis=-1)
    return tf.maximum(ymax1, ymax2) - tf.minimum(ymin1, ymin2), tf.maximum(xmax1, xmax2) - tf.minimum(xmin1, xmin2)
