"""Boxes and keypoints to offsets from anchors and back.

Source: Faster R-CNN, arXiv:1506.01497, equation 2, with the Object Detection API's scale factors and its order
(y, x, height, width), then y and x of each keypoint.
"""

import tensorflow as tf

from detloom.schemas.model_config import BoxCoder, KeypointBoxCoder
from detloom.trainer_module.boxes import cyxhw_to_yxyx, yxyx_to_cyxhw

_MIN_SIZE = 1e-8  # keeps the logarithm of a padding box (size 0) finite; the reference uses the same


def encode_boxes(coder: BoxCoder, boxes_yxyx: tf.Tensor, anchors_yxyx: tf.Tensor) -> tf.Tensor:
    """[..., A, 4] boxes, one for each of the [A, 4] anchors, to [..., A, 4] offsets without unit."""
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
    """Inverse of `encode_boxes`: [..., A, 4] offsets to [..., A, 4] yxyx boxes in the anchors' unit."""
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


def encode_keypoints(coder: KeypointBoxCoder, keypoints_yx: tf.Tensor, anchors_yxyx: tf.Tensor) -> tf.Tensor:
    """[..., A, P, 2] points, P of them for each of the [A, 4] anchors, to [..., A, P * 2] offsets without unit.

    They stand behind the four of `encode_boxes`. A point that is NaN, because it is not known, stays NaN.
    """
    centres_A12, sizes_A12 = _centres_and_sizes(anchors_yxyx)
    offsets = (keypoints_yx - centres_A12) / (sizes_A12 + _MIN_SIZE) * [coder.y_scale, coder.x_scale]
    return tf.reshape(offsets, [*keypoints_yx.shape[:-2], coder.num_keypoints * 2])


def decode_keypoints(coder: KeypointBoxCoder, offsets: tf.Tensor, anchors_yxyx: tf.Tensor) -> tf.Tensor:
    """Inverse of `encode_keypoints`: [..., A, P * 2] offsets to [..., A, P, 2] points in the anchors' unit."""
    centres_A12, sizes_A12 = _centres_and_sizes(anchors_yxyx)
    offsets = tf.reshape(offsets, [*offsets.shape[:-1], coder.num_keypoints, 2])
    return offsets / [coder.y_scale, coder.x_scale] * sizes_A12 + centres_A12


def _centres_and_sizes(anchors_yxyx: tf.Tensor) -> list[tf.Tensor]:
    """Both [A, 1, 2], y first."""
    return tf.split(yxyx_to_cyxhw(anchors_yxyx)[:, tf.newaxis, :], 2, axis=-1)
