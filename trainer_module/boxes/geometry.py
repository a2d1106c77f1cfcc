"""Box formats and box geometry on tensors. All conversions between box formats are here.

The exception is `coco_images.py`, which converts to the COCO format itself because it must not need TensorFlow.

`_yxyx` is (ymin, xmin, ymax, xmax); `_cyxhw` is (centre y, centre x, height, width); `_rel` is relative to the image,
0 to 1; `_px` is pixels.
"""

import math

import tensorflow as tf


def yxyx_to_cyxhw(boxes_yxyx: tf.Tensor) -> tf.Tensor:
    """Convert corners [..., 4] to centre and size, in the same unit."""
    ymin, xmin, ymax, xmax = tf.unstack(boxes_yxyx, axis=-1)
    return tf.stack([(ymin + ymax) / 2, (xmin + xmax) / 2, ymax - ymin, xmax - xmin], axis=-1)


def cyxhw_to_yxyx(boxes_cyxhw: tf.Tensor) -> tf.Tensor:
    """Convert centre and size [..., 4] to corners, in the same unit."""
    y, x, height, width = tf.unstack(boxes_cyxhw, axis=-1)
    return tf.stack([y - height / 2, x - width / 2, y + height / 2, x + width / 2], axis=-1)


def area(boxes_yxyx: tf.Tensor) -> tf.Tensor:
    """Return the areas [...]; the area of an inverted box is 0."""
    ymin, xmin, ymax, xmax = tf.unstack(boxes_yxyx, axis=-1)
    return tf.maximum(ymax - ymin, 0) * tf.maximum(xmax - xmin, 0)


def intersection(boxes1_yxyx: tf.Tensor, boxes2_yxyx: tf.Tensor) -> tf.Tensor:
    """Return the areas [...] shared by each pair of boxes at the same index; leading dimensions broadcast."""
    ymin1, xmin1, ymax1, xmax1 = tf.unstack(boxes1_yxyx, axis=-1)
    ymin2, xmin2, ymax2, xmax2 = tf.unstack(boxes2_yxyx, axis=-1)
    height = tf.maximum(tf.minimum(ymax1, ymax2) - tf.maximum(ymin1, ymin2), 0)
    width = tf.maximum(tf.minimum(xmax1, xmax2) - tf.maximum(xmin1, xmin2), 0)
    return height * width


def iou(boxes1_yxyx: tf.Tensor, boxes2_yxyx: tf.Tensor) -> tf.Tensor:
    """Return the intersection over union [...] of each pair of boxes at the same index; 0 if the union is empty."""
    shared = intersection(boxes1_yxyx, boxes2_yxyx)
    return tf.math.divide_no_nan(shared, area(boxes1_yxyx) + area(boxes2_yxyx) - shared)


def iou_matrix(boxes1_yxyx_N4: tf.Tensor, boxes2_yxyx_M4: tf.Tensor) -> tf.Tensor:
    """Return the intersection over union [..., N, M] of all pairs; leading dimensions broadcast."""
    return iou(boxes1_yxyx_N4[..., :, tf.newaxis, :], boxes2_yxyx_M4[..., tf.newaxis, :, :])


def giou(boxes1_yxyx: tf.Tensor, boxes2_yxyx: tf.Tensor) -> tf.Tensor:
    """Return the generalized IoU [...], -1 to 1 (arXiv:1902.09630): IoU minus the share of the hull that is uncovered.

    It is 0 if the hull has no area.
    """
    shared = intersection(boxes1_yxyx, boxes2_yxyx)
    union = area(boxes1_yxyx) + area(boxes2_yxyx) - shared
    height, width = hull_sides(boxes1_yxyx, boxes2_yxyx)
    hull = height * width
    return tf.math.divide_no_nan(shared, union) - tf.math.divide_no_nan(hull - union, hull)


def ciou(boxes1_yxyx: tf.Tensor, boxes2_yxyx: tf.Tensor) -> tf.Tensor:
    """Return the complete IoU [...] (arXiv:1911.08287, equations 7 to 11): IoU minus distance and aspect penalties.

    The gradient equals that of the authors' code: the weight of the aspect ratio penalty is constant, and the
    denominators that grow without bound for small boxes are left out (equation 12).
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
        angle = tf.atan2(width, tf.maximum(height, 1e-8))  # atan2(0, 0) has no gradient
        difference += sign * (tf.stop_gradient(angle * (1 - damping)) + angle * damping)
    penalty = 4 / math.pi**2 * tf.square(difference)
    overlap = iou(boxes1_yxyx, boxes2_yxyx)
    weight = tf.stop_gradient(tf.math.divide_no_nan(penalty, 1 - overlap + penalty))
    return overlap - distance - weight * penalty


def hull_sides(boxes1_yxyx: tf.Tensor, boxes2_yxyx: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return height [...] and width [...] of the smallest box that contains both boxes."""
    ymin1, xmin1, ymax1, xmax1 = tf.unstack(boxes1_yxyx, axis=-1)
    ymin2, xmin2, ymax2, xmax2 = tf.unstack(boxes2_yxyx, axis=-1)
    return tf.maximum(ymax1, ymax2) - tf.minimum(ymin1, ymin2), tf.maximum(xmax1, xmax2) - tf.minimum(xmin1, xmin2)
