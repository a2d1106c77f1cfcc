"""Changes of a picture's size; boxes and keypoints, which are relative to it, stay."""

import tensorflow as tf

from detloom.schemas.augmentation_config import RandomDownscaleToTargetPixels, RandomImageScale
from detloom.trainer_module.sample import Sample, replaced


def random_image_scale(config: RandomImageScale, sample: Sample, seed: tf.Tensor) -> Sample:
    factor = tf.random.stateless_uniform([], seed, config.min_scale_ratio, config.max_scale_ratio)
    image_hw = tf.cast(tf.shape(sample["image"])[:2], tf.float32)
    return resized(sample, tf.maximum(tf.cast(image_hw * factor, tf.int32), 1), align_corners=True)


def random_downscale(config: RandomDownscaleToTargetPixels, sample: Sample, seed: tf.Tensor) -> Sample:
    chance_seed, pixels_seed = tf.unstack(tf.random.experimental.stateless_split(seed))
    limits = (config.min_target_pixels, config.max_target_pixels)
    target_pixels = tf.random.stateless_uniform([], pixels_seed, *limits, dtype=tf.int32)
    image_hw = tf.shape(sample["image"])[:2]
    scale = tf.sqrt(tf.cast(target_pixels, tf.float32) / tf.cast(tf.reduce_prod(image_hw), tf.float32))
    target_hw = tf.maximum(tf.cast(scale * tf.cast(image_hw, tf.float32), tf.int32), 1)
    is_left = tf.random.stateless_uniform([], chance_seed) < config.random_coef
    sample = replaced(sample, image=tf.cast(sample["image"], tf.float32))
    return tf.cond(is_left | (scale >= 1.0), lambda: sample, lambda: resized(sample, target_hw))


def resized(sample: Sample, image_hw: tf.Tensor, *, align_corners: bool = False) -> Sample:
    """Bilinear and float32; masks by their nearest pixel. Sampled as by the reference, which is TensorFlow 1's way."""
    resize = tf.compat.v1.image.resize
    changed = replaced(sample, image=resize(sample["image"], image_hw, align_corners=align_corners))
    if "masks_GHW" in sample:
        masks_GHW1 = sample["masks_GHW"][..., tf.newaxis]
        nearest = tf.image.ResizeMethod.NEAREST_NEIGHBOR
        changed["masks_GHW"] = resize(masks_GHW1, image_hw, nearest, align_corners=align_corners)[..., 0]
    return changed
