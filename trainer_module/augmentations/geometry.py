"""Flips and quarter turns, and what moves with a picture: boxes, masks and keypoints."""

import tensorflow as tf

from detloom.trainer_module.sample import Sample, replaced


def flip_horizontally(sample: Sample, keypoint_permutation: tuple[int, ...] = ()) -> Sample:
    """Keypoint i of the result is what keypoint `keypoint_permutation[i]` was; empty keeps their order."""
    ymin, xmin, ymax, xmax = tf.unstack(sample["boxes_yxyx_rel"], axis=-1)
    flipped = replaced(
        sample,
        image=tf.reverse(sample["image"], axis=[1]),
        boxes_yxyx_rel=tf.stack([ymin, 1 - xmax, ymax, 1 - xmin], axis=-1),
    )
    if "masks_GHW" in sample:
        flipped["masks_GHW"] = tf.reverse(sample["masks_GHW"], axis=[2])
    if "keypoints_yx_rel_GP2" in sample:
        y, x = tf.unstack(_permuted(sample["keypoints_yx_rel_GP2"], keypoint_permutation), axis=-1)
        flipped["keypoints_yx_rel_GP2"] = tf.stack([y, 1 - x], axis=-1)
    return flipped


def flip_vertically(sample: Sample, keypoint_permutation: tuple[int, ...] = ()) -> Sample:
    """See `flip_horizontally`."""
    ymin, xmin, ymax, xmax = tf.unstack(sample["boxes_yxyx_rel"], axis=-1)
    flipped = replaced(
        sample,
        image=tf.reverse(sample["image"], axis=[0]),
        boxes_yxyx_rel=tf.stack([1 - ymax, xmin, 1 - ymin, xmax], axis=-1),
    )
    if "masks_GHW" in sample:
        flipped["masks_GHW"] = tf.reverse(sample["masks_GHW"], axis=[1])
    if "keypoints_yx_rel_GP2" in sample:
        y, x = tf.unstack(_permuted(sample["keypoints_yx_rel_GP2"], keypoint_permutation), axis=-1)
        flipped["keypoints_yx_rel_GP2"] = tf.stack([1 - y, x], axis=-1)
    return flipped


def rotate_counter_clockwise(sample: Sample, keypoint_permutation: tuple[int, ...] = ()) -> Sample:
    """By a quarter; see `flip_horizontally`."""
    ymin, xmin, ymax, xmax = tf.unstack(sample["boxes_yxyx_rel"], axis=-1)
    rotated = replaced(
        sample,
        image=tf.image.rot90(sample["image"]),
        boxes_yxyx_rel=tf.stack([1 - xmax, ymin, 1 - xmin, ymax], axis=-1),
    )
    if "masks_GHW" in sample:
        rotated["masks_GHW"] = tf.reverse(tf.transpose(sample["masks_GHW"], [0, 2, 1]), axis=[1])
    if "keypoints_yx_rel_GP2" in sample:
        y, x = tf.unstack(_permuted(sample["keypoints_yx_rel_GP2"], keypoint_permutation), axis=-1)
        rotated["keypoints_yx_rel_GP2"] = tf.stack([1 - x, y], axis=-1)
    return rotated


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


def _permuted(keypoints_GP2: tf.Tensor, permutation: tuple[int, ...]) -> tf.Tensor:
    return tf.gather(keypoints_GP2, permutation, axis=1) if permutation else keypoints_GP2
