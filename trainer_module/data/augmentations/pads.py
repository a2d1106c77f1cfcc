"""Pad an image with one color."""

import tensorflow as tf

from detloom.schemas.contracts.ground_truth import IMAGE
from detloom.schemas.model.augmentations import RandomAbsolutePadImage, RandomPadImage
from detloom.schemas.model.crop_augmentations import SsdRandomCropPadFixedAspectRatio
from detloom.trainer_module.data.augmentations.geometry import in_frame
from detloom.trainer_module.data.augmentations.patches import mean_color
from detloom.trainer_module.data.sample import Sample, columns_of, image_hw_of


def random_pad(config: RandomPadImage, sample: Sample, seed: tf.Tensor) -> Sample:
    image_hw = image_hw_of(sample)
    min_hw = tf.constant([config.min_image_height, config.min_image_width])
    max_hw = tf.constant([config.max_image_height, config.max_image_width])
    return pad_at_random(sample, min_hw, tf.where(max_hw > 0, max_hw, 2 * image_hw), config.pad_color, seed)


def random_absolute_pad(config: RandomAbsolutePadImage, sample: Sample, seed: tf.Tensor) -> Sample:
    """Pad by 0 up to the largest paddings, split at random between both sides."""
    image_hw = image_hw_of(sample)
    max_hw = image_hw + tf.constant([config.max_height_padding, config.max_width_padding])
    return pad_at_random(sample, image_hw, max_hw, config.pad_color, seed)


def pad_at_random(
    sample: Sample, min_hw: tf.Tensor, max_hw: tf.Tensor, color: tuple[float, ...] | tf.Tensor, seed: tf.Tensor
) -> Sample:
    """Pad to a random size from `min_hw` up to but excluding `max_hw` (int32 [2]); smaller sizes pad nothing.

    The position of the image is drawn as in the reference, where padding is never only above or only to the left.
    """
    image_hw, draws = image_hw_of(sample), tf.random.stateless_uniform([2, 2], seed)
    min_hw, max_hw = tf.maximum(min_hw, image_hw), tf.maximum(max_hw, image_hw)
    drawn_hw = min_hw + _share_of(draws[0], max_hw - min_hw)
    added_hw = tf.where(max_hw > min_hw, drawn_hw, max_hw) - image_hw
    before_yx = _share_of(draws[1], added_hw)
    return framed(sample, before_yx, added_hw - before_yx, color)


def pad_to_aspect_ratio(config: SsdRandomCropPadFixedAspectRatio, sample: Sample, seed: tf.Tensor) -> Sample:
    """Pad black below and to the right; the size is drawn between the smallest and the largest with the ratio."""
    image_hw = image_hw_of(sample)
    hw = tf.cast(image_hw, tf.float32)
    height, width = tf.unstack(hw)
    fitting_hw = tf.maximum(hw, tf.stack([width / config.aspect_ratio, height * config.aspect_ratio]))
    largest = tf.reduce_min(tf.maximum(hw * config.max_padded_size_ratio, fitting_hw) / fitting_hw)
    smallest = tf.reduce_max(tf.maximum(hw * config.min_padded_size_ratio, fitting_hw) / fitting_hw)
    smallest = tf.minimum(smallest, largest)
    scale = smallest + tf.random.stateless_uniform([], seed) * (largest - smallest)
    after_yx = tf.maximum(tf.cast(tf.round(scale * fitting_hw), tf.int32) - image_hw, 0)
    return framed(sample, tf.zeros_like(after_yx), after_yx, (0.0, 0.0, 0.0))


def framed(sample: Sample, before_yx: tf.Tensor, after_yx: tf.Tensor, color: tuple[float, ...] | tf.Tensor) -> Sample:
    """Pad by `before_yx` above and to the left and by `after_yx` below and to the right (int32 [2], 0 or more).

    Args:
        color: red, green and blue, 0 to 255; () is the mean color of the image.
    """
    rows, columns = tf.unstack(tf.stack([before_yx, after_yx], axis=1))
    image = sample[IMAGE]
    is_mean = isinstance(color, tuple) and not color
    padded = _pad_in_color(image, rows, columns, mean_color(image) if is_mean else color)
    image_hw = tf.shape(image)[:2]
    hw, before, after = (tf.cast(pixels, tf.float32) for pixels in (image_hw, before_yx, after_yx))
    grown = {**in_frame(sample, -before / hw, (hw + after) / hw), IMAGE: padded}
    for name in columns_of(sample, "masks"):
        grown[name] = tf.pad(sample[name], [[0, 0], rows, columns])
    return grown


def _pad_in_color(
    image_HW3: tf.Tensor, rows: tf.Tensor, columns: tf.Tensor, color: tuple[float, ...] | tf.Tensor
) -> tf.Tensor:
    """Pad by (before, after) rows and columns. Rows are padded as rows of numbers: rows of pixels take much longer."""
    height, width = tf.unstack(tf.shape(image_HW3)[:2])
    padded_width = width + tf.reduce_sum(columns)
    numbers = tf.reshape(image_HW3, [height, width * 3])
    if isinstance(color, tuple) and not any(color):
        padded = tf.pad(numbers, [rows, columns * 3])
    else:  # unsigned numbers wrap around and back
        color_3 = tf.cast(color, image_HW3.dtype)
        padded = tf.pad(numbers - tf.tile(color_3, [width]), [rows, columns * 3]) + tf.tile(color_3, [padded_width])
    return tf.reshape(padded, [-1, padded_width, 3])


def _share_of(draws: tf.Tensor, pixels: tf.Tensor) -> tf.Tensor:
    """Convert draws of 0 to 1 to whole numbers from 0 up to but excluding `pixels`."""
    return tf.cast(tf.floor(draws * tf.cast(pixels, tf.float32)), tf.int32)
