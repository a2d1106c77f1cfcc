"""Random changes to a training picture and its boxes. Every function is deterministic in its seed (int32 [2])."""

import tensorflow as tf

from detloom.schemas.config import (
    Augmentation,
    HorizontalFlip,
    RandomBrightness,
    RandomContrast,
    RandomCrop,
    VerticalFlip,
)
from detloom.trainer_module import boxes
from detloom.trainer_module.example_parser import Sample


def runs_before_resize(augmentation: Augmentation) -> bool:
    """A crop, so that no pixel is resized in vain; the others have fewer pixels to move after it."""
    return isinstance(augmentation, RandomCrop)


@tf.autograph.experimental.do_not_convert  # AutoGraph does not know `match`
def apply_augmentation(augmentation: Augmentation, sample: Sample, seed: tf.Tensor) -> Sample:
    match augmentation:
        case HorizontalFlip(probability=probability):
            return _if_drawn(probability, seed, sample, flip_horizontally)
        case VerticalFlip(probability=probability):
            return _if_drawn(probability, seed, sample, flip_vertically)
        case RandomCrop():
            return random_crop(augmentation, sample, seed)
        case RandomBrightness(max_delta=max_delta):
            delta = tf.random.stateless_uniform([], seed, -max_delta, max_delta) * 255.0
            return _with_image(sample, tf.clip_by_value(tf.cast(sample["image"], tf.float32) + delta, 0.0, 255.0))
        case RandomContrast():
            return random_contrast(augmentation, sample, seed)
    raise AssertionError(f"no such augmentation: {augmentation}")


def flip_horizontally(sample: Sample) -> Sample:
    ymin, xmin, ymax, xmax = tf.unstack(sample["boxes_yxyx_rel"], axis=-1)
    flipped = _with_image(sample, tf.reverse(sample["image"], axis=[1]))
    flipped["boxes_yxyx_rel"] = tf.stack([ymin, 1 - xmax, ymax, 1 - xmin], axis=-1)
    return flipped


def flip_vertically(sample: Sample) -> Sample:
    ymin, xmin, ymax, xmax = tf.unstack(sample["boxes_yxyx_rel"], axis=-1)
    flipped = _with_image(sample, tf.reverse(sample["image"], axis=[0]))
    flipped["boxes_yxyx_rel"] = tf.stack([1 - ymax, xmin, 1 - ymin, xmax], axis=-1)
    return flipped


def crop(sample: Sample, window_yxyx_rel: tf.Tensor, min_visible: float) -> Sample:
    """Cut out a window (moved to whole pixels); boxes are clipped to it and dropped below `min_visible` of their area.

    `area_px` shrinks with the visible share of the box.
    """
    image = sample["image"]
    hw = tf.cast(tf.shape(image)[:2], tf.float32)
    begin_px = tf.cast(tf.math.floor(window_yxyx_rel[:2] * hw), tf.int32)
    end_px = tf.minimum(tf.cast(tf.math.ceil(window_yxyx_rel[2:] * hw), tf.int32), tf.shape(image)[:2])
    end_px = tf.maximum(end_px, begin_px + 1)
    image = image[begin_px[0] : end_px[0], begin_px[1] : end_px[1]]
    begin, size = tf.cast(begin_px, tf.float32) / hw, tf.cast(end_px - begin_px, tf.float32) / hw
    moved = (sample["boxes_yxyx_rel"] - tf.tile(begin, [2])) / tf.tile(size, [2])
    clipped = tf.clip_by_value(moved, 0.0, 1.0)
    visible = tf.math.divide_no_nan(boxes.area(clipped), boxes.area(moved))
    keep = (visible >= min_visible) & (visible > 0)
    return Sample(
        image=image,
        boxes_yxyx_rel=tf.boolean_mask(clipped, keep),
        class_indices=tf.boolean_mask(sample["class_indices"], keep),
        is_crowd=tf.boolean_mask(sample["is_crowd"], keep),
        area_px=tf.boolean_mask(sample["area_px"] * visible, keep),
    )


def random_crop(config: RandomCrop, sample: Sample, seed: tf.Tensor) -> Sample:
    """Crop to a window of random area and aspect ratio (in terms of the picture's own), unless no box would stay."""
    draw, area_share, log_ratio, y, x = tf.unstack(tf.random.stateless_uniform([5], seed))
    area_share = config.min_area + area_share * (config.max_area - config.min_area)
    low, high = tf.math.log(config.min_aspect_ratio), tf.math.log(config.max_aspect_ratio)
    ratio = tf.exp(low + log_ratio * (high - low))
    height, width = tf.minimum(tf.sqrt(area_share / ratio), 1.0), tf.minimum(tf.sqrt(area_share * ratio), 1.0)
    ymin, xmin = y * (1 - height), x * (1 - width)
    cropped = crop(sample, tf.stack([ymin, xmin, ymin + height, xmin + width]), config.min_visible)
    lost_all = (tf.size(cropped["class_indices"]) == 0) & (tf.size(sample["class_indices"]) > 0)
    use = (draw < config.probability) & ~lost_all
    return tf.cond(use, lambda: cropped, lambda: sample)


def random_contrast(config: RandomContrast, sample: Sample, seed: tf.Tensor) -> Sample:
    image = tf.cast(sample["image"], tf.float32)
    factor = tf.random.stateless_uniform([], seed, config.min_factor, config.max_factor)
    mean = tf.reduce_mean(image, axis=[0, 1], keepdims=True)
    return _with_image(sample, tf.clip_by_value(mean + (image - mean) * factor, 0.0, 255.0))


def _with_image(sample: Sample, image: tf.Tensor) -> Sample:
    changed = sample.copy()
    changed["image"] = image
    return changed


def _if_drawn(
    probability: float, seed: tf.Tensor, sample: Sample, change: "tf.types.experimental.GenericFunction"
) -> Sample:
    draw = tf.random.stateless_uniform([], seed)
    return tf.cond(draw < probability, lambda: change(sample), lambda: sample)
