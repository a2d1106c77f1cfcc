"""Changes of the image size, and square crops of random scale, padded with black."""

import tensorflow as tf

from detloom.schemas.contracts.ground_truth import IMAGE
from detloom.schemas.model.augmentations import RandomDownscaleToTargetPixels, RandomImageScale
from detloom.schemas.model.crop_augmentations import RandomScaleCropAndPadToSquare, RandomSquareCropByScale
from detloom.trainer_module.data.augmentations.crops import Window, cut
from detloom.trainer_module.data.augmentations.pads import framed
from detloom.trainer_module.data.sample import Sample, columns_of, image_hw_of, split_seed

_BLACK = (0.0, 0.0, 0.0)


def scale_crop_and_pad(config: RandomScaleCropAndPadToSquare, sample: Sample, seed: tf.Tensor) -> Sample:
    """Scale the longer side to `output_size` times a random scale; crop, or pad below and to the right."""
    side, draws = config.output_size, tf.random.stateless_uniform([3], seed)
    scale = config.scale_min + draws[0] * (config.scale_max - config.scale_min)
    hw = tf.cast(image_hw_of(sample), tf.float32)
    scaled_hw = tf.maximum(tf.cast(scale * side * (hw / tf.reduce_max(hw)), tf.int32), 1)
    over_hw = tf.maximum(scaled_hw - side, 0)
    begin_yx = tf.cast(tf.cast(over_hw, tf.float32) * draws[1:], tf.int32)
    square = _cut_and_fill(resized(sample, scaled_hw), begin_yx, side)
    square[IMAGE].set_shape([side, side, 3])
    return square


def square_crop_by_scale(config: RandomSquareCropByScale, sample: Sample, seed: tf.Tensor) -> Sample:
    """Crop a square at a random position; its side is the longer side of the image times a random scale."""
    scale_seed, place_seed = split_seed(seed)
    scales = tf.linspace(config.scale_min, config.scale_max, config.num_scales)
    scale = tf.cast(scales, tf.float32)[
        tf.random.stateless_uniform([], scale_seed, maxval=config.num_scales, dtype=tf.int32)
    ]
    image_hw = image_hw_of(sample)
    side = tf.maximum(tf.cast(scale * tf.cast(tf.reduce_max(image_hw), tf.float32), tf.int32), 1)
    border_yx = _border(config.max_border, image_hw)
    places_yx = tf.cast(image_hw - 2 * border_yx + 1, tf.float32)
    draws = tf.random.stateless_uniform([2], place_seed)
    center_yx = tf.minimum(border_yx + tf.cast(tf.floor(draws * places_yx), tf.int32), image_hw - 1)
    return _cut_and_fill(sample, center_yx - side // 2, side)


def _border(max_border: int, image_hw: tf.Tensor) -> tf.Tensor:
    """Return the least distance of the crop centre from the image edges, int32 [2]; see `RandomSquareCropByScale`."""
    border = float(max_border)
    halvings = tf.math.ceil(tf.math.log(2 * border / tf.cast(image_hw, tf.float32)) / tf.math.log(2.0))
    return max_border // tf.cast(tf.clip_by_value(tf.pow(2.0, halvings), 1.0, border), tf.int32)


def _cut_and_fill(sample: Sample, begin_yx: tf.Tensor, side: int | tf.Tensor) -> Sample:
    """Crop a square that may reach beyond the image; boxes and keypoints are clipped to it."""
    image_hw, end_yx = image_hw_of(sample), begin_yx + side
    first_yx, last_yx = tf.maximum(begin_yx, 0), tf.minimum(end_yx, image_hw)
    window = Window(first_yx, last_yx - first_yx, min_visible=tf.constant(0.0), clip_boxes=tf.constant(True))
    return framed(cut(sample, window), first_yx - begin_yx, end_yx - last_yx, _BLACK)


def random_image_scale(config: RandomImageScale, sample: Sample, seed: tf.Tensor) -> Sample:
    factor = tf.random.stateless_uniform([], seed, config.min_scale_ratio, config.max_scale_ratio)
    image_hw = tf.cast(image_hw_of(sample), tf.float32)
    return resized(sample, tf.maximum(tf.cast(image_hw * factor, tf.int32), 1), align_corners=True)


def random_downscale(config: RandomDownscaleToTargetPixels, sample: Sample, seed: tf.Tensor) -> Sample:
    chance_seed, pixels_seed = split_seed(seed)
    limits = (config.min_target_pixels, config.max_target_pixels)
    target_pixels = tf.random.stateless_uniform([], pixels_seed, *limits, dtype=tf.int32)
    image_hw = image_hw_of(sample)
    scale = tf.sqrt(tf.cast(target_pixels, tf.float32) / tf.cast(tf.reduce_prod(image_hw), tf.float32))
    target_hw = tf.maximum(tf.cast(scale * tf.cast(image_hw, tf.float32), tf.int32), 1)
    is_left = tf.random.stateless_uniform([], chance_seed) < config.random_coef
    sample = {**sample, IMAGE: tf.cast(sample[IMAGE], tf.float32)}
    return tf.cond(is_left | (scale >= 1.0), lambda: sample, lambda: resized(sample, target_hw))


def resized(sample: Sample, image_hw: tf.Tensor, *, align_corners: bool = False) -> Sample:
    """Resize bilinearly to float32, masks by nearest neighbour; sample as TensorFlow 1 and the reference do."""
    resize = tf.compat.v1.image.resize
    changed = {**sample, IMAGE: resize(sample[IMAGE], image_hw, align_corners=align_corners)}
    for name in columns_of(sample, "masks"):
        masks_GHW1 = sample[name][..., tf.newaxis]
        nearest = tf.image.ResizeMethod.NEAREST_NEIGHBOR
        changed[name] = resize(masks_GHW1, image_hw, nearest, align_corners=align_corners)[..., 0]
    return changed
