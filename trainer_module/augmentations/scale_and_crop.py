"""Squares of random scale, cut out of a picture and filled up with black."""

import tensorflow as tf

from detloom.schemas.crop_augmentation_config import RandomScaleCropAndPadToSquare, RandomSquareCropByScale
from detloom.trainer_module.augmentations.crops import Window, cut
from detloom.trainer_module.augmentations.pads import framed
from detloom.trainer_module.augmentations.resizing import resized
from detloom.trainer_module.sample import Sample

_BLACK = (0.0, 0.0, 0.0)


def scale_crop_and_pad(config: RandomScaleCropAndPadToSquare, sample: Sample, seed: tf.Tensor) -> Sample:
    """Scale the longer side to `output_size` times the drawn scale; cut what is over, or fill below and right."""
    side, draws = config.output_size, tf.random.stateless_uniform([3], seed)
    scale = config.scale_min + draws[0] * (config.scale_max - config.scale_min)
    hw = tf.cast(tf.shape(sample["image"])[:2], tf.float32)
    scaled_hw = tf.maximum(tf.cast(scale * side * (hw / tf.reduce_max(hw)), tf.int32), 1)
    over_hw = tf.maximum(scaled_hw - side, 0)
    begin_yx = tf.cast(tf.cast(over_hw, tf.float32) * draws[1:], tf.int32)
    square = _cut_and_fill(resized(sample, scaled_hw), begin_yx, side)
    square["image"].set_shape([side, side, 3])
    return square


def square_crop_by_scale(config: RandomSquareCropByScale, sample: Sample, seed: tf.Tensor) -> Sample:
    """A square whose side is the picture's longer one times the drawn scale, around a random place of the picture."""
    scale_seed, place_seed = tf.unstack(tf.random.experimental.stateless_split(seed))
    scales = tf.linspace(config.scale_min, config.scale_max, config.num_scales)
    scale = tf.cast(scales, tf.float32)[
        tf.random.stateless_uniform([], scale_seed, maxval=config.num_scales, dtype=tf.int32)
    ]
    image_hw = tf.shape(sample["image"])[:2]
    side = tf.maximum(tf.cast(scale * tf.cast(tf.reduce_max(image_hw), tf.float32), tf.int32), 1)
    border_yx = _border(config.max_border, image_hw)
    places_yx = tf.cast(image_hw - 2 * border_yx + 1, tf.float32)
    draws = tf.random.stateless_uniform([2], place_seed)
    center_yx = tf.minimum(border_yx + tf.cast(tf.floor(draws * places_yx), tf.int32), image_hw - 1)
    return _cut_and_fill(sample, center_yx - side // 2, side)


def _border(max_border: int, image_hw: tf.Tensor) -> tf.Tensor:
    """int32 [2]: the distance of a square's centre from the picture's edges; see `RandomSquareCropByScale`."""
    border = float(max_border)
    halvings = tf.math.ceil(tf.math.log(2 * border / tf.cast(image_hw, tf.float32)) / tf.math.log(2.0))
    return max_border // tf.cast(tf.clip_by_value(tf.pow(2.0, halvings), 1.0, border), tf.int32)


def _cut_and_fill(sample: Sample, begin_yx: tf.Tensor, side: int | tf.Tensor) -> Sample:
    """A square that may reach beyond the picture; boxes and keypoints are cut at its edge."""
    image_hw, end_yx = tf.shape(sample["image"])[:2], begin_yx + side
    first_yx, last_yx = tf.maximum(begin_yx, 0), tf.minimum(end_yx, image_hw)
    window = Window(first_yx, last_yx - first_yx, min_visible=tf.constant(0.0), clip_boxes=tf.constant(True))
    return framed(cut(sample, window), first_yx - begin_yx, end_yx - last_yx, _BLACK)
