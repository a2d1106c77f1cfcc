"""Flips and quarter turns, and what moves with a picture: boxes, masks and keypoints."""

from collections.abc import Callable

import tensorflow as tf

from detloom.trainer_module.sample import Sample, replaced


def flip_horizontally(sample: Sample, keypoint_permutation: tuple[int, ...] = ()) -> Sample:
    """Keypoint i of the result is what keypoint `keypoint_permutation[i]` was; empty keeps their order."""
    return _turned(sample, lambda images: tf.reverse(images, axis=[-2]), lambda y, x: (y, 1 - x), keypoint_permutation)


def flip_vertically(sample: Sample, keypoint_permutation: tuple[int, ...] = ()) -> Sample:
    """See `flip_horizontally`."""
    return _turned(sample, lambda images: tf.reverse(images, axis=[-3]), lambda y, x: (1 - y, x), keypoint_permutation)


def rotate_counter_clockwise(sample: Sample, keypoint_permutation: tuple[int, ...] = ()) -> Sample:
    """By a quarter; see `flip_horizontally`."""
    return _turned(sample, tf.image.rot90, lambda y, x: (1 - x, y), keypoint_permutation)


def in_frame(sample: Sample, begin_yx_rel: tf.Tensor, end_yx_rel: tf.Tensor) -> Sample:
    """Boxes and keypoints relative to another frame, which is given relative to the picture. Nothing is cut off."""
    begin, size = begin_yx_rel, end_yx_rel - begin_yx_rel
    moved = replaced(sample, boxes_yxyx_rel=(sample["boxes_yxyx_rel"] - tf.tile(begin, [2])) / tf.tile(size, [2]))
    if "keypoints_yx_rel_GP2" in sample:
        moved["keypoints_yx_rel_GP2"] = (sample["keypoints_yx_rel_GP2"] - begin) / size
    return moved


def clipped(sample: Sample) -> Sample:
    """Boxes cut at the picture's edge; keypoints outside become unlabelled."""
    inside = replaced(sample, boxes_yxyx_rel=tf.clip_by_value(sample["boxes_yxyx_rel"], 0.0, 1.0))
    if "keypoints_yx_rel_GP2" in sample:
        points = sample["keypoints_yx_rel_GP2"]
        is_inside = tf.reduce_all((points >= 0.0) & (points <= 1.0), axis=-1, keepdims=True)
        inside["keypoints_yx_rel_GP2"] = tf.where(is_inside, points, float("nan"))
    return inside


def _turned(
    sample: Sample,
    turn: Callable[[tf.Tensor], tf.Tensor],
    turn_point: Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]],
    keypoint_permutation: tuple[int, ...],
) -> Sample:
    """All that belongs to a picture, with it.

    Args:
        turn: of one picture [H, W, C], or several [N, H, W, C].
        turn_point: from (y, x) to (y, x), relative to the picture.
    """
    ymin, xmin, ymax, xmax = tf.unstack(sample["boxes_yxyx_rel"], axis=-1)
    one, other = tf.stack(turn_point(ymin, xmin), axis=-1), tf.stack(turn_point(ymax, xmax), axis=-1)
    corners = tf.concat([tf.minimum(one, other), tf.maximum(one, other)], axis=-1)
    turned = replaced(sample, image=turn(sample["image"]), boxes_yxyx_rel=corners)
    if "masks_GHW" in sample:
        turned["masks_GHW"] = turn(sample["masks_GHW"][..., tf.newaxis])[..., 0]
    if "keypoints_yx_rel_GP2" in sample:
        points = sample["keypoints_yx_rel_GP2"]
        if keypoint_permutation:
            points = tf.gather(points, keypoint_permutation, axis=1)
        turned["keypoints_yx_rel_GP2"] = tf.stack(turn_point(*tf.unstack(points, axis=-1)), axis=-1)
    return turned
