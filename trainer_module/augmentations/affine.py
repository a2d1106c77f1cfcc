"""Turns, shifts and shears of a picture, and of boxes, masks and keypoints with it."""

from typing import NamedTuple

import tensorflow as tf

from detloom.trainer_module import boxes
from detloom.trainer_module.augmentations.geometry import clipped
from detloom.trainer_module.sample import Sample, keep_boxes, replaced


class Affine(NamedTuple):
    """Where the point (x, y) of the result was: (xx * x + xy * y + x0, yx * x + yy * y + y0), in pixels.

    Points are places in the picture: the upper left pixel reaches from (0, 0) to (1, 1).
    """

    xx: float | tf.Tensor
    xy: float | tf.Tensor
    x0: float | tf.Tensor
    yx: float | tf.Tensor
    yy: float | tf.Tensor
    y0: float | tf.Tensor


def rotation(radians: float | tf.Tensor, image_hw: tf.Tensor) -> Affine:
    """Counter-clockwise around the picture's centre."""
    height, width = tf.unstack(tf.cast(image_hw, tf.float32))
    sine, cosine = tf.sin(radians), tf.cos(radians)
    x0 = (width - cosine * width + sine * height) / 2.0
    y0 = (height - sine * width - cosine * height) / 2.0
    return Affine(cosine, -sine, x0, sine, cosine, y0)


def translation(x_px: float | tf.Tensor, y_px: float | tf.Tensor) -> Affine:
    """To the left and upwards, as the reference has it."""
    return Affine(1.0, 0.0, x_px, 0.0, 1.0, y_px)


def shear_x(level: float | tf.Tensor) -> Affine:
    """Each row to the left by `level` times its height."""
    return Affine(1.0, level, 0.0, 0.0, 1.0, 0.0)


def shear_y(level: float | tf.Tensor) -> Affine:
    """Each column upwards by `level` times its distance from the left."""
    return Affine(1.0, 0.0, 0.0, level, 1.0, 0.0)


def warp_image(images_HWC: tf.Tensor, affine: Affine, fill: float) -> tf.Tensor:
    """A picture of the same size, of the nearest pixels; what was outside is `fill`."""
    xx, xy, x0, yx, yy, y0 = affine
    # the kernel counts from the centre of the first pixel
    x0, y0 = x0 + (xx + xy - 1.0) * 0.5, y0 + (yx + yy - 1.0) * 0.5
    transform = [tf.cast(value, tf.float32) for value in (xx, xy, x0, yx, yy, y0, 0.0, 0.0)]
    warped = tf.raw_ops.ImageProjectiveTransformV3(
        images=images_HWC[tf.newaxis],
        transforms=tf.stack(transform)[tf.newaxis],
        output_shape=tf.shape(images_HWC)[:2],
        fill_value=fill,
        interpolation="NEAREST",
        fill_mode="CONSTANT",
    )[0]
    return tf.ensure_shape(warped, images_HWC.shape)


def warp(sample: Sample, affine: Affine, fill: float) -> Sample:
    """All of the picture's columns; a box becomes the box around its moved corners.

    A box is cut at the picture's edge, and dropped where nothing of it is left. `area_px` shrinks by the share that is
    cut off. Keypoints that leave the picture become unlabelled.
    """
    image_hw = tf.cast(tf.shape(sample["image"])[:2], tf.float32)
    ymin, xmin, ymax, xmax = tf.unstack(sample["boxes_yxyx_rel"], axis=-1)
    corners_yx = tf.stack([tf.stack([y, x], axis=-1) for y in (ymin, ymax) for x in (xmin, xmax)], axis=1)
    corners_yx = _moved(corners_yx, affine, image_hw)
    around = tf.concat([tf.reduce_min(corners_yx, axis=1), tf.reduce_max(corners_yx, axis=1)], axis=-1)
    moved = replaced(sample, image=warp_image(sample["image"], affine, fill), boxes_yxyx_rel=around)
    if "masks_GHW" in sample:
        masks_HWG = tf.transpose(sample["masks_GHW"], [1, 2, 0])
        moved["masks_GHW"] = tf.transpose(warp_image(masks_HWG, affine, 0.0), [2, 0, 1])
    if "keypoints_yx_rel_GP2" in sample:
        moved["keypoints_yx_rel_GP2"] = _moved(sample["keypoints_yx_rel_GP2"], affine, image_hw)
    inside = clipped(moved)
    visible = tf.math.divide_no_nan(boxes.area(inside["boxes_yxyx_rel"]), boxes.area(around))
    inside["area_px"] = sample["area_px"] * visible
    return keep_boxes(inside, visible > 0.0)


def _moved(points_yx_rel: tf.Tensor, affine: Affine, image_hw: tf.Tensor) -> tf.Tensor:
    """Where points [..., 2] of the picture come to lie."""
    xx, xy, x0, yx, yy, y0 = affine
    y, x = tf.unstack(points_yx_rel * image_hw, axis=-1)
    y, x, determinant = y - y0, x - x0, xx * yy - xy * yx
    moved = tf.stack([(xx * y - yx * x) / determinant, (yy * x - xy * y) / determinant], axis=-1)
    return moved / image_hw
