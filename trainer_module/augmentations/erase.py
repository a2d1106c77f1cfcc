"""Parts of a picture that are made black or grey; boxes stay, also where nothing is left to see of an object."""

import math

import tensorflow as tf

from detloom.schemas.color_augmentation_config import GridMask, RandomBlackPatches, RandomCutout
from detloom.trainer_module.augmentations.chance import if_drawn
from detloom.trainer_module.augmentations.patches import rectangles
from detloom.trainer_module.sample import Sample, replaced


def random_black_patches(config: RandomBlackPatches, sample: Sample, seed: tf.Tensor) -> Sample:
    """Squares wholly inside the picture."""
    seeds, image = tf.unstack(tf.random.experimental.stateless_split(seed)), sample["image"]
    image_hw = tf.cast(tf.shape(image)[:2], tf.float32)
    side = tf.floor(tf.reduce_min(image_hw) * config.size_to_image_ratio)
    draws = tf.random.stateless_uniform([config.max_black_patches, 2], seeds[0])
    begin_yx = tf.floor(draws * (1.0 - config.size_to_image_ratio) * image_hw)
    is_drawn = tf.random.stateless_uniform([config.max_black_patches, 1], seeds[1]) < config.probability
    end_yx = tf.where(is_drawn, begin_yx + side, begin_yx)
    return _filled(sample, _rectangles(image, begin_yx, end_yx), 0.0)


def random_cutout(config: RandomCutout, sample: Sample, seed: tf.Tensor) -> Sample:
    seeds = tf.unstack(tf.random.experimental.stateless_split(seed))

    def cut_out(sample: Sample) -> Sample:
        image_hw = tf.cast(tf.shape(sample["image"])[:2], tf.float32)
        side = tf.round(tf.reduce_min(image_hw) * config.size_to_image_ratio)
        center_yx = tf.floor(tf.random.stateless_uniform([config.num_holes, 2], seeds[1]) * image_hw)
        begin_yx = center_yx - tf.floor(side / 2.0)
        return _filled(sample, _rectangles(sample["image"], begin_yx, begin_yx + side), config.fill)

    return if_drawn(config.probability, seeds[0], sample, cut_out)


def random_grid_mask(config: GridMask, sample: Sample, seed: tf.Tensor) -> Sample:
    seeds = tf.unstack(tf.random.experimental.stateless_split(seed))

    def masked(sample: Sample) -> Sample:
        draws = tf.unstack(tf.random.stateless_uniform([4], seeds[1]))
        image_hw = tf.cast(tf.shape(sample["image"])[:2], tf.float32)
        share = config.min_period + draws[0] * (config.max_period - config.min_period)
        angle = math.radians(config.rotate) * (2.0 * draws[1] - 1.0)
        is_erased = grid_squares(
            tf.shape(sample["image"])[:2],
            period=share * tf.reduce_min(image_hw),
            kept_share=config.ratio,
            angle_radians=angle,
            offset_yx_share=(draws[2], draws[3]),
        )
        return _filled(sample, is_erased, 0.0)

    return if_drawn(config.probability, seeds[0], sample, masked)


def grid_squares(
    image_hw: tf.Tensor,
    *,
    period: tf.Tensor,
    kept_share: float,
    angle_radians: tf.Tensor,
    offset_yx_share: tuple[tf.Tensor, tf.Tensor],
) -> tf.Tensor:
    """bool [H, W]: the squares of a grid that is turned around the picture's centre.

    Args:
        period: in pixels.
        kept_share: of each period, along both axes, what comes before the square.
        offset_yx_share: what the grid is shifted by, in periods.
    """
    y, x = (tf.range(tf.cast(image_hw[i], tf.float32)) + 0.5 - tf.cast(image_hw[i], tf.float32) / 2.0 for i in range(2))
    y, x, sine, cosine = y[:, tf.newaxis], x[tf.newaxis], tf.sin(angle_radians), tf.cos(angle_radians)
    along = (y * cosine + x * sine) / period + offset_yx_share[0]
    across = (x * cosine - y * sine) / period + offset_yx_share[1]
    return (along - tf.floor(along) >= kept_share) & (across - tf.floor(across) >= kept_share)


def _rectangles(image_HW3: tf.Tensor, begin_yx_N2: tf.Tensor, end_yx_N2: tf.Tensor) -> tf.Tensor:
    height, width = tf.unstack(tf.shape(image_HW3)[:2])
    return rectangles((height, width), tf.cast(begin_yx_N2, tf.int32), tf.cast(end_yx_N2, tf.int32))


def _filled(sample: Sample, is_erased_HW: tf.Tensor, fill: float) -> Sample:
    image = sample["image"]
    return replaced(sample, image=tf.where(is_erased_HW[..., tf.newaxis], tf.cast(fill, image.dtype), image))
