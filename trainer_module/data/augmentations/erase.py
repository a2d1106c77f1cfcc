"""Fill parts of an image with black or gray; boxes stay, even if nothing of the object is visible any more."""

import math

import tensorflow as tf

from detloom.schemas.contracts.ground_truth import IMAGE
from detloom.schemas.model.color_augmentations import GridMask, RandomBlackPatches, RandomCutout
from detloom.trainer_module.data.augmentations.patches import filled, rectangles
from detloom.trainer_module.data.sample import Sample, if_drawn, image_hw_of, split_seed


def random_black_patches(config: RandomBlackPatches, sample: Sample, seed: tf.Tensor) -> Sample:
    """Fill squares that are completely inside the image."""
    seeds = split_seed(seed)
    image_hw = tf.cast(image_hw_of(sample), tf.float32)
    side = tf.floor(tf.reduce_min(image_hw) * config.size_to_image_ratio)
    draws = tf.random.stateless_uniform([config.max_black_patches, 2], seeds[0])
    begin_yx = tf.floor(draws * (1.0 - config.size_to_image_ratio) * image_hw)
    is_drawn = tf.random.stateless_uniform([config.max_black_patches, 1], seeds[1]) < config.probability
    return _with_squares(sample, begin_yx, tf.where(is_drawn, side, 0.0), 0.0)


def random_cutout(config: RandomCutout, sample: Sample, seed: tf.Tensor) -> Sample:
    seeds = split_seed(seed)

    def cut_out(sample: Sample) -> Sample:
        image_hw = tf.cast(image_hw_of(sample), tf.float32)
        side = tf.round(tf.reduce_min(image_hw) * config.size_to_image_ratio)
        center_yx = tf.floor(tf.random.stateless_uniform([config.num_holes, 2], seeds[1]) * image_hw)
        return _with_squares(sample, center_yx - tf.floor(side / 2.0), side, config.fill)

    return if_drawn(config.probability, seeds[0], sample, cut_out)


def random_grid_mask(config: GridMask, sample: Sample, seed: tf.Tensor) -> Sample:
    seeds = split_seed(seed)

    def masked(sample: Sample) -> Sample:
        draws = tf.unstack(tf.random.stateless_uniform([4], seeds[1]))
        image_hw = tf.cast(image_hw_of(sample), tf.float32)
        share = config.min_period + draws[0] * (config.max_period - config.min_period)
        angle = math.radians(config.rotate) * (2.0 * draws[1] - 1.0)
        is_erased = grid_squares(
            image_hw_of(sample),
            period=share * tf.reduce_min(image_hw),
            kept_share=config.ratio,
            angle_radians=angle,
            offset_yx_share=(draws[2], draws[3]),
        )
        return {**sample, IMAGE: filled(sample[IMAGE], is_erased, 0.0)}

    return if_drawn(config.probability, seeds[0], sample, masked)


def grid_squares(
    image_hw: tf.Tensor,
    *,
    period: tf.Tensor,
    kept_share: float,
    angle_radians: tf.Tensor,
    offset_yx_share: tuple[tf.Tensor, tf.Tensor],
) -> tf.Tensor:
    """Return the squares of a grid that is rotated around the centre of the image, bool [H, W].

    Args:
        period: in pixels.
        kept_share: share of each period, along both axes, before the square begins.
        offset_yx_share: shift of the grid, in periods.
    """
    y, x = (tf.range(tf.cast(image_hw[i], tf.float32)) + 0.5 - tf.cast(image_hw[i], tf.float32) / 2.0 for i in range(2))
    y, x, sine, cosine = y[:, tf.newaxis], x[tf.newaxis], tf.sin(angle_radians), tf.cos(angle_radians)
    along = (y * cosine + x * sine) / period + offset_yx_share[0]
    across = (x * cosine - y * sine) / period + offset_yx_share[1]
    return (along - tf.floor(along) >= kept_share) & (across - tf.floor(across) >= kept_share)


def _with_squares(sample: Sample, begin_yx_N2: tf.Tensor, side: tf.Tensor, fill: float) -> Sample:
    """Fill squares with sides of a whole number of pixels; a side of 0 fills nothing."""
    begin_yx, image = tf.cast(begin_yx_N2, tf.int32), sample[IMAGE]
    is_filled_HW = rectangles(tf.shape(image)[:2], begin_yx, begin_yx + tf.cast(side, tf.int32))
    return {**sample, IMAGE: filled(image, is_filled_HW, fill)}
