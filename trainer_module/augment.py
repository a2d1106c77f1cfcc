"""Random changes to a training picture and its boxes. Every function is deterministic in its seed (int32 [2])."""

from collections.abc import Callable

import tensorflow as tf

from detloom.schemas.augmentation_config import (
    Augmentation,
    RandomAbsolutePadImage,
    RandomAdjustBrightness,
    RandomAdjustContrast,
    RandomAdjustHue,
    RandomAdjustSaturation,
    RandomCropImage,
    RandomHorizontalFlip,
    RandomRotation90,
    RandomVerticalFlip,
)
from detloom.trainer_module import boxes
from detloom.trainer_module.example_parser import Sample

_MAX_CROP_ATTEMPTS = 100  # the reference's; then the whole picture is taken
_MIN_AREA = 1e-6  # TensorFlow refuses an area of 0


def runs_before_resize(augmentation: Augmentation) -> bool:
    """A crop, so that no pixel is resized in vain, and a turn or a frame, which change the sides.

    The others have fewer pixels to move after it.
    """
    return isinstance(augmentation, RandomCropImage | RandomRotation90 | RandomAbsolutePadImage)


@tf.autograph.experimental.do_not_convert  # AutoGraph does not know `match`
def apply_augmentation(augmentation: Augmentation, sample: Sample, seed: tf.Tensor) -> Sample:
    match augmentation:
        case RandomHorizontalFlip(probability=probability):
            return _if_drawn(probability, seed, sample, flip_horizontally)
        case RandomVerticalFlip(probability=probability):
            return _if_drawn(probability, seed, sample, flip_vertically)
        case RandomRotation90(probability=probability):
            return _if_drawn(probability, seed, sample, rotate_counter_clockwise)
        case RandomCropImage():
            return random_crop(augmentation, sample, seed)
        case RandomAbsolutePadImage():
            return random_pad(augmentation, sample, seed)
        case RandomAdjustBrightness(max_delta=max_delta):
            delta = tf.random.stateless_uniform([], seed, -max_delta, max_delta)
            return _with_colors(sample, lambda image: image + delta)
        case RandomAdjustContrast(min_delta=low, max_delta=high):
            factor = tf.random.stateless_uniform([], seed, low, high)
            return _with_colors(sample, lambda image: tf.image.adjust_contrast(image, factor))
        case RandomAdjustHue(max_delta=max_delta):
            delta = tf.random.stateless_uniform([], seed, -max_delta, max_delta)
            return _with_colors(sample, lambda image: tf.image.adjust_hue(image, delta))
        case RandomAdjustSaturation(min_delta=low, max_delta=high):
            factor = tf.random.stateless_uniform([], seed, low, high)
            return _with_colors(sample, lambda image: tf.image.adjust_saturation(image, factor))
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


def rotate_counter_clockwise(sample: Sample) -> Sample:
    ymin, xmin, ymax, xmax = tf.unstack(sample["boxes_yxyx_rel"], axis=-1)
    rotated = _with_image(sample, tf.image.rot90(sample["image"]))
    rotated["boxes_yxyx_rel"] = tf.stack([1 - xmax, ymin, 1 - xmin, ymax], axis=-1)
    return rotated


def crop(
    sample: Sample, begin_yx_px: tf.Tensor, size_hw_px: tf.Tensor, *, min_visible: float, clip_boxes: bool = True
) -> Sample:
    """Cut out a window; boxes outside it, or with less than `min_visible` of their area in it, are dropped.

    `area_px` shrinks with the visible share of the box.
    """
    image, end_yx_px = sample["image"], begin_yx_px + size_hw_px
    hw = tf.cast(tf.shape(image)[:2], tf.float32)
    begin, end = (tf.tile(tf.cast(corner_px, tf.float32) / hw, [2]) for corner_px in (begin_yx_px, end_yx_px))
    visible_boxes = tf.clip_by_value(sample["boxes_yxyx_rel"], begin, end)
    visible = tf.math.divide_no_nan(boxes.area(visible_boxes), boxes.area(sample["boxes_yxyx_rel"]))
    moved = (sample["boxes_yxyx_rel"] - begin) / (end - begin)
    if clip_boxes:
        moved = tf.clip_by_value(moved, 0.0, 1.0)
    keep = (visible >= min_visible) & (visible > 0)
    return Sample(
        image=image[begin_yx_px[0] : end_yx_px[0], begin_yx_px[1] : end_yx_px[1]],
        boxes_yxyx_rel=tf.boolean_mask(moved, keep),
        class_indices=tf.boolean_mask(sample["class_indices"], keep),
        is_crowd=tf.boolean_mask(sample["is_crowd"], keep),
        area_px=tf.boolean_mask(sample["area_px"] * visible, keep),
    )


def random_crop(config: RandomCropImage, sample: Sample, seed: tf.Tensor) -> Sample:
    """Crop to a random window, in which no box may be left; the whole picture where none is found that fits."""
    draw_seed, window_seed = tf.unstack(tf.random.experimental.stateless_split(seed))

    def cropped(sample: Sample) -> Sample:
        begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
            tf.shape(sample["image"]),
            tf.clip_by_value(sample["boxes_yxyx_rel"], 0.0, 1.0)[tf.newaxis],
            window_seed,
            min_object_covered=config.min_object_covered,
            aspect_ratio_range=(config.min_aspect_ratio, config.max_aspect_ratio),
            area_range=(max(config.min_area, _MIN_AREA), config.max_area),
            max_attempts=_MAX_CROP_ATTEMPTS,
            use_image_if_no_bounding_boxes=True,
        )
        return crop(sample, begin[:2], size[:2], min_visible=config.overlap_thresh, clip_boxes=config.clip_boxes)

    return _if_drawn(1 - config.random_coef, draw_seed, sample, cropped)


def random_pad(config: RandomAbsolutePadImage, sample: Sample, seed: tf.Tensor) -> Sample:
    """Grow by 0 up to the largest paddings; what is added is divided at random between both sides."""
    image, draws = sample["image"], tf.random.stateless_uniform([2, 2], seed)
    added_hw = tf.floor(draws[0] * [config.max_height_padding, config.max_width_padding])
    before_yx = tf.floor(draws[1] * added_hw)
    color = tf.constant(config.pad_color) if config.pad_color else tf.reduce_mean(tf.cast(image, tf.float32), [0, 1])
    color = tf.cast(color, image.dtype)
    rows, columns = tf.unstack(tf.cast(tf.stack([before_yx, added_hw - before_yx], axis=1), tf.int32))
    padded = tf.pad(image - color, [rows, columns, [0, 0]]) + color  # unsigned numbers wrap around and back
    hw = tf.cast(tf.shape(image)[:2], tf.float32)
    moved = (sample["boxes_yxyx_rel"] * tf.tile(hw, [2]) + tf.tile(before_yx, [2])) / tf.tile(hw + added_hw, [2])
    changed = _with_image(sample, padded)
    changed["boxes_yxyx_rel"] = moved
    return changed


def _with_colors(sample: Sample, change: Callable[[tf.Tensor], tf.Tensor]) -> Sample:
    """`change` gets and gives float colours of 0 to 1; what it takes beyond is cut off."""
    changed = tf.clip_by_value(change(tf.cast(sample["image"], tf.float32) / 255.0), 0.0, 1.0)
    return _with_image(sample, changed * 255.0)


def _with_image(sample: Sample, image: tf.Tensor) -> Sample:
    changed = sample.copy()
    changed["image"] = image
    return changed


def _if_drawn(probability: float, seed: tf.Tensor, sample: Sample, change: Callable[[Sample], Sample]) -> Sample:
    draw = tf.random.stateless_uniform([], seed)
    return tf.cond(draw < probability, lambda: change(sample), lambda: sample)
