"""The color operations of AutoAugment on uint8 images, bit-identical to those of its authors.

They are those of the Python Imaging Library, truncated to whole numbers after each. Most of them return a lookup table
of new values, uint8 [3, 256], or [1, 256] for all channels; `looked_up` applies it.
"""

import tensorflow as tf

from detloom.trainer_module.data.augmentations.patches import rectangles


def looked_up(image_HW3: tf.Tensor, table_3V: tf.Tensor) -> tf.Tensor:
    table = tf.reshape(tf.broadcast_to(table_3V, [3, 256]), [-1])
    return tf.gather(table, tf.cast(image_HW3, tf.int32) + tf.constant([0, 256, 512]))


def solarize(threshold: tf.Tensor) -> tf.Tensor:
    """Invert values of at least `threshold`."""
    values = _all_values()
    return tf.cast(tf.where(values >= threshold, 255.0 - values, values), tf.uint8)


def solarize_add(addition: tf.Tensor) -> tf.Tensor:
    """Add to values below 128."""
    values = _all_values()
    return _to_uint8(tf.where(values < 128.0, values + addition, values))


def posterize(num_bits: tf.Tensor) -> tf.Tensor:
    """Keep only the most significant bits of each value, at least one."""
    step = 2 ** (8 - tf.maximum(tf.cast(num_bits, tf.int32), 1))
    values = tf.range(256)[tf.newaxis]
    return tf.cast(values // step * step, tf.uint8)


def brightness(factor: tf.Tensor) -> tf.Tensor:
    return _to_uint8(_all_values() * factor)


def contrast(image_HW3: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Scale the difference from the mean gray, which is a whole number."""
    gray = tf.cast(tf.image.rgb_to_grayscale(image_HW3), tf.int64)
    mean = tf.cast(tf.reduce_mean(gray), tf.float32)
    return _to_uint8(mean + factor * (_all_values() - mean))


def autocontrast(image_HW3: tf.Tensor) -> tf.Tensor:
    """Stretch the values of each channel to the full range."""
    low, high = (
        tf.cast(reduce(image_HW3, axis=[0, 1]), tf.float32)[:, tf.newaxis] for reduce in (tf.reduce_min, tf.reduce_max)
    )
    values, scale = _all_values(), tf.math.divide_no_nan(255.0, high - low)
    return _to_uint8(tf.where(high > low, values * scale - low * scale, values))


def equalize(image_HW3: tf.Tensor) -> tf.Tensor:
    """Equalize the histogram of each channel."""
    flat = tf.reshape(tf.cast(image_HW3, tf.int32) + tf.constant([0, 256, 512]), [-1])
    counts_3V = tf.reshape(tf.math.bincount(flat, minlength=768, maxlength=768), [3, 256])
    brightest = tf.reduce_max(tf.where(counts_3V > 0, tf.range(256), 0), axis=1)
    num_brightest = tf.gather(counts_3V, brightest, batch_dims=1)
    step = ((tf.reduce_sum(counts_3V, axis=1) - num_brightest) // 255)[:, tf.newaxis]
    below_3V = tf.cumsum(counts_3V, axis=1, exclusive=True)
    spread = tf.minimum((below_3V + step // 2) // tf.maximum(step, 1), 255)
    return tf.cast(tf.where(step == 0, tf.range(256), spread), tf.uint8)


def color(image_HW3: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Scale the difference from gray."""
    return _blend(tf.image.rgb_to_grayscale(image_HW3), image_HW3, factor)


def sharpness(image_HW3: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Scale the difference from a smoothed image; the outermost pixels do not change."""
    kernel = tf.constant([[1, 1, 1], [1, 5, 1], [1, 1, 1]], tf.float32)[:, :, tf.newaxis, tf.newaxis] / 13.0
    image = tf.cast(image_HW3, tf.float32)[tf.newaxis]
    smooth = tf.nn.depthwise_conv2d(image, tf.tile(kernel, [1, 1, 3, 1]), [1, 1, 1, 1], "SAME")[0]
    image_hw = tf.shape(image_HW3)[:2]
    is_inner = rectangles(image_hw, tf.constant([[1, 1]]), (image_hw - 1)[tf.newaxis])
    return tf.where(is_inner[..., tf.newaxis], _blend(_to_uint8(smooth), image_HW3, factor), image_HW3)


def _all_values() -> tf.Tensor:
    return tf.range(256.0)[tf.newaxis]


def _blend(neutral: tf.Tensor, image_HW3: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    neutral, image = tf.cast(neutral, tf.float32), tf.cast(image_HW3, tf.float32)
    return _to_uint8(neutral + factor * (image - neutral))


def _to_uint8(values: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.clip_by_value(values, 0.0, 255.0), tf.uint8)
