"""Flips, rotations, translations and shears of an image together with its boxes, masks and keypoints."""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from detloom.schemas.contracts.ground_truth import AREA, BOXES, IMAGE
from detloom.trainer_module.boxes import geometry as boxes
from detloom.trainer_module.data.sample import Sample, columns_of, image_hw_of, keep_boxes


def flip_horizontally(sample: Sample, keypoint_permutation: tuple[int, ...] = ()) -> Sample:
    """Flip left and right. Keypoint i of the result is keypoint `keypoint_permutation[i]`; () keeps the order."""
    return _turned(sample, lambda images: tf.reverse(images, axis=[-2]), lambda y, x: (y, 1 - x), keypoint_permutation)


def flip_vertically(sample: Sample, keypoint_permutation: tuple[int, ...] = ()) -> Sample:
    """Flip top and bottom; see `flip_horizontally`."""
    return _turned(sample, lambda images: tf.reverse(images, axis=[-3]), lambda y, x: (1 - y, x), keypoint_permutation)


def rotate_counter_clockwise(sample: Sample, keypoint_permutation: tuple[int, ...] = ()) -> Sample:
    """Rotate by 90 degrees; see `flip_horizontally`."""
    return _turned(sample, tf.image.rot90, lambda y, x: (1 - x, y), keypoint_permutation)


def in_frame(sample: Sample, begin_yx_rel: tf.Tensor, end_yx_rel: tf.Tensor) -> Sample:
    """Express boxes and keypoints relative to another frame, given relative to the image, without clipping."""
    begin, size = begin_yx_rel, end_yx_rel - begin_yx_rel
    moved = {**sample, BOXES: (sample[BOXES] - tf.tile(begin, [2])) / tf.tile(size, [2])}
    for name in columns_of(sample, "points"):
        moved[name] = (sample[name] - begin) / size
    return moved


def clipped(sample: Sample) -> Sample:
    """Clip boxes to the image; keypoints outside become unlabelled."""
    inside = {**sample, BOXES: tf.clip_by_value(sample[BOXES], 0.0, 1.0)}
    for name in columns_of(sample, "points"):
        points = sample[name]
        is_inside = tf.reduce_all((points >= 0.0) & (points <= 1.0), axis=-1, keepdims=True)
        inside[name] = tf.where(is_inside, points, float("nan"))
    return inside


def _turned(
    sample: Sample,
    turn: Callable[[tf.Tensor], tf.Tensor],
    turn_point: Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]],
    keypoint_permutation: tuple[int, ...],
) -> Sample:
    """Turn an image and its ground truth.

    Args:
        turn: turns one image [H, W, C] or several [N, H, W, C].
        turn_point: maps (y, x) to (y, x), relative to the image.
    """
    ymin, xmin, ymax, xmax = tf.unstack(sample[BOXES], axis=-1)
    one, other = tf.stack(turn_point(ymin, xmin), axis=-1), tf.stack(turn_point(ymax, xmax), axis=-1)
    corners = tf.concat([tf.minimum(one, other), tf.maximum(one, other)], axis=-1)
    turned = {**sample, IMAGE: turn(sample[IMAGE]), BOXES: corners}
    for name in columns_of(sample, "masks"):
        turned[name] = turn(sample[name][..., tf.newaxis])[..., 0]
    for name in columns_of(sample, "points"):
        points = sample[name]
        if keypoint_permutation:
            points = tf.gather(points, keypoint_permutation, axis=1)
        turned[name] = tf.stack(turn_point(*tf.unstack(points, axis=-1)), axis=-1)
    return turned


class Affine(NamedTuple):
    """Map from point (x, y) of the result to the source: (xx * x + xy * y + x0, yx * x + yy * y + y0), in pixels.

    Pixels are areas: the upper left pixel covers (0, 0) to (1, 1).
    """

    xx: float | tf.Tensor
    xy: float | tf.Tensor
    x0: float | tf.Tensor
    yx: float | tf.Tensor
    yy: float | tf.Tensor
    y0: float | tf.Tensor


def rotation(radians: float | tf.Tensor, image_hw: tf.Tensor) -> Affine:
    """Return a counter-clockwise rotation around the centre of the image."""
    height, width = tf.unstack(tf.cast(image_hw, tf.float32))
    sine, cosine = tf.sin(radians), tf.cos(radians)
    x0 = (width - cosine * width + sine * height) / 2.0
    y0 = (height - sine * width - cosine * height) / 2.0
    return Affine(cosine, -sine, x0, sine, cosine, y0)


def translation(x_px: float | tf.Tensor, y_px: float | tf.Tensor) -> Affine:
    """Return a translation to the left and upwards, as in the reference."""
    return Affine(1.0, 0.0, x_px, 0.0, 1.0, y_px)


def shear_x(level: float | tf.Tensor) -> Affine:
    """Return a shear that moves each row to the left by `level` times its y."""
    return Affine(1.0, level, 0.0, 0.0, 1.0, 0.0)


def shear_y(level: float | tf.Tensor) -> Affine:
    """Return a shear that moves each column upwards by `level` times its x."""
    return Affine(1.0, 0.0, 0.0, level, 1.0, 0.0)


def warp_image(images_HWC: tf.Tensor, affine: Affine, fill: float) -> tf.Tensor:
    """Transform an image with nearest-neighbour sampling; the size is unchanged, new pixels get `fill`."""
    xx, xy, x0, yx, yy, y0 = affine
    # The kernel measures from the centre of the first pixel.
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
    """Transform image and ground truth; a box becomes the box around its transformed corners.

    Boxes are clipped to the image, and dropped if nothing is left. `area_px` is reduced by the share that is clipped.
    Keypoints that leave the image become unlabelled.
    """
    image_hw = tf.cast(image_hw_of(sample), tf.float32)
    ymin, xmin, ymax, xmax = tf.unstack(sample[BOXES], axis=-1)
    corners_yx = tf.stack([tf.stack([y, x], axis=-1) for y in (ymin, ymax) for x in (xmin, xmax)], axis=1)
    corners_yx = _moved(corners_yx, affine, image_hw)
    around = tf.concat([tf.reduce_min(corners_yx, axis=1), tf.reduce_max(corners_yx, axis=1)], axis=-1)
    moved = {**sample, IMAGE: warp_image(sample[IMAGE], affine, fill), BOXES: around}
    for name in columns_of(sample, "masks"):
        masks_HWG = tf.transpose(sample[name], [1, 2, 0])
        moved[name] = tf.transpose(warp_image(masks_HWG, affine, 0.0), [2, 0, 1])
    for name in columns_of(sample, "points"):
        moved[name] = _moved(sample[name], affine, image_hw)
    inside = clipped(moved)
    visible = tf.math.divide_no_nan(boxes.area(inside[BOXES]), boxes.area(around))
    inside[AREA] = sample[AREA] * visible
    return keep_boxes(inside, visible > 0.0)


def _moved(points_yx_rel: tf.Tensor, affine: Affine, image_hw: tf.Tensor) -> tf.Tensor:
    """Return the new positions of points [..., 2]."""
    xx, xy, x0, yx, yy, y0 = affine
    y, x = tf.unstack(points_yx_rel * image_hw, axis=-1)
    y, x, determinant = y - y0, x - x0, xx * yy - xy * yx
    moved = tf.stack([(xx * y - yx * x) / determinant, (yy * x - xy * y) / determinant], axis=-1)
    return moved / image_hw
