"""Boxes in tensors: the only place where their formats are converted, and the geometry on them.

The metrics, which must not need TensorFlow, convert to COCO's format themselves (`coco_metrics.py`).

`_yxyx` is (ymin, xmin, ymax, xmax); `_cyxhw` is (centre y, centre x, height, width); `_rel` is relative to the image,
0 to 1; `_px` is pixels.
"""

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


def pairwise_intersection(boxes1_yxyx_N4: tf.Tensor, boxes2_yxyx_M4: tf.Tensor) -> tf.Tensor:
    """[..., N, M] overlap of every pair; leading dimensions broadcast."""
    ymin1, xmin1, ymax1, xmax1 = tf.split(boxes1_yxyx_N4, 4, axis=-1)  # each [..., N, 1]
    ymin2, xmin2, ymax2, xmax2 = (
        tf.squeeze(side, -1)[..., tf.newaxis, :] for side in tf.split(boxes2_yxyx_M4, 4, axis=-1)
    )
    height = tf.maximum(tf.minimum(ymax1, ymax2) - tf.maximum(ymin1, ymin2), 0)
    width = tf.maximum(tf.minimum(xmax1, xmax2) - tf.maximum(xmin1, xmin2), 0)
    return height * width


def pairwise_iou(boxes1_yxyx_N4: tf.Tensor, boxes2_yxyx_M4: tf.Tensor) -> tf.Tensor:
    """[..., N, M] intersection over union of every pair; 0 where the union has no area."""
    intersection = pairwise_intersection(boxes1_yxyx_N4, boxes2_yxyx_M4)
    union = area(boxes1_yxyx_N4)[..., :, tf.newaxis] + area(boxes2_yxyx_M4)[..., tf.newaxis, :] - intersection
    return tf.math.divide_no_nan(intersection, union)
