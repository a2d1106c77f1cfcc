"""Encode boxes as offsets from anchors, and decode them.

Source: Faster R-CNN, arXiv:1506.01497, equation 2, with the scale factors and the order (y, x, height, width) of the
Object Detection API.
"""

import tensorflow as tf

from detloom.schemas.model.detector import BoxCoder
from detloom.trainer_module.boxes.geometry import cyxhw_to_yxyx, yxyx_to_cyxhw

_MIN_SIZE = 1e-8  # the reference's value; keeps the logarithm of a padding box (size 0) finite


def encode_boxes(coder: BoxCoder, boxes_yxyx: tf.Tensor, anchors_yxyx: tf.Tensor) -> tf.Tensor:
    """Encode boxes [..., A, 4], one for each of the anchors [A, 4], as unitless offsets [..., A, 4]."""
    box_y, box_x, box_h, box_w = tf.unstack(yxyx_to_cyxhw(boxes_yxyx), axis=-1)
    anchor_y, anchor_x, anchor_h, anchor_w = tf.unstack(yxyx_to_cyxhw(anchors_yxyx), axis=-1)
    anchor_h, anchor_w, box_h, box_w = (side + _MIN_SIZE for side in (anchor_h, anchor_w, box_h, box_w))
    return tf.stack(
        [
            coder.y_scale * (box_y - anchor_y) / anchor_h,
            coder.x_scale * (box_x - anchor_x) / anchor_w,
            coder.height_scale * tf.math.log(box_h / anchor_h),
            coder.width_scale * tf.math.log(box_w / anchor_w),
        ],
        axis=-1,
    )


def decode_boxes(coder: BoxCoder, offsets: tf.Tensor, anchors_yxyx: tf.Tensor) -> tf.Tensor:
    """Decode offsets [..., A, 4] to yxyx boxes [..., A, 4] in the unit of the anchors; inverse of `encode_boxes`."""
    y, x, height, width = tf.unstack(offsets, axis=-1)
    anchor_y, anchor_x, anchor_h, anchor_w = tf.unstack(yxyx_to_cyxhw(anchors_yxyx), axis=-1)
    return cyxhw_to_yxyx(
        tf.stack(
            [
                y / coder.y_scale * anchor_h + anchor_y,
                x / coder.x_scale * anchor_w + anchor_x,
                tf.exp(height / coder.height_scale) * anchor_h,
                tf.exp(width / coder.width_scale) * anchor_w,
            ],
            axis=-1,
        )
    )
