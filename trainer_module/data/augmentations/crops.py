"""Random crops in two steps: the window is drawn without the pixels, so that only the window needs to be decoded."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from detloom.schemas.contracts.ground_truth import AREA, BOXES, IMAGE
from detloom.schemas.model.crop_augmentations import (
    RandomCropImage,
    RandomCropPadImage,
    RandomCropToAspectRatio,
    SsdRandomCrop,
    SsdRandomCropOperation,
    SsdRandomCropPadOperation,
)
from detloom.trainer_module.boxes import geometry as boxes
from detloom.trainer_module.data.augmentations.geometry import clipped, in_frame
from detloom.trainer_module.data.sample import Sample, columns_of, keep_boxes, split_seed

WindowCrop = RandomCropImage | SsdRandomCrop | RandomCropToAspectRatio
WindowKind = RandomCropImage | RandomCropPadImage | SsdRandomCropOperation | SsdRandomCropPadOperation

_MAX_CROP_ATTEMPTS = 100  # the reference's value; after that the whole image is taken
_MIN_AREA = 1e-6  # TensorFlow refuses an area of 0
SSD_OPERATIONS = tuple(  # the reference's defaults
    SsdRandomCropOperation(
        min_object_covered=share,
        min_aspect_ratio=0.5,
        max_aspect_ratio=2.0,
        min_area=0.1,
        max_area=1.0,
        overlap_thresh=share,
        random_coef=0.15,
    )
    for share in (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
)


class Window(NamedTuple):
    """The part of an image that a crop keeps; always inside the image.

    Attributes:
        begin_yx: int32 [2], pixels.
        size_hw: int32 [2], pixels, 1 or more.
        min_visible: float32 [], smallest share of a box inside the window for the box to be kept; boxes outside are
            never kept. A negative value, with the whole image as the window, keeps all boxes unchanged.
        clip_boxes: bool [], True if boxes are clipped to the window.
    """

    begin_yx: tf.Tensor
    size_hw: tf.Tensor
    min_visible: tf.Tensor
    clip_boxes: tf.Tensor


@tf.autograph.experimental.do_not_convert  # AutoGraph does not know `match`
def draw_window(crop: WindowCrop, boxes_yxyx_rel: tf.Tensor, image_hw: tf.Tensor, seed: tf.Tensor) -> Window:
    """Draw a random window, which may contain no box; the whole image if no window meets the conditions."""
    match crop:
        case RandomCropImage():
            return window_of_kind([crop], tf.constant(0), boxes_yxyx_rel, image_hw, seed)
        case SsdRandomCrop(operations=operations):
            kinds, seeds = operations or SSD_OPERATIONS, tf.random.experimental.stateless_split(seed, 2)
            return window_of_kind(kinds, draw_kind(kinds, seeds[0]), boxes_yxyx_rel, image_hw, seeds[1])
        case RandomCropToAspectRatio():
            return _window_of_aspect_ratio(crop, image_hw, seed)
    raise AssertionError(f"no such crop: {crop}")


def cut(sample: Sample, window: Window) -> Sample:
    image, (begin_yx, end_yx) = sample[IMAGE], (window.begin_yx, window.begin_yx + window.size_hw)
    window_image = image[begin_yx[0] : end_yx[0], begin_yx[1] : end_yx[1]]
    return {**crop_boxes(sample, window, tf.shape(image)[:2]), IMAGE: window_image}


def crop_boxes(sample: Sample, window: Window, image_hw: tf.Tensor) -> Sample:
    """Crop everything except `image`, which may be anything; `area_px` is multiplied by the visible share of the box.

    Args:
        image_hw: int32 [2], size of the image before the crop.
    """
    hw, end_yx = tf.cast(image_hw, tf.float32), window.begin_yx + window.size_hw
    begin, end = tf.cast(window.begin_yx, tf.float32) / hw, tf.cast(end_yx, tf.float32) / hw
    visible_boxes = tf.clip_by_value(sample[BOXES], tf.tile(begin, [2]), tf.tile(end, [2]))
    visible = tf.math.divide_no_nan(boxes.area(visible_boxes), boxes.area(sample[BOXES]))
    keeps_all = window.min_visible < 0
    moved = in_frame(sample, begin, end)
    inside = clipped(moved)
    moved[AREA] = tf.where(keeps_all, sample[AREA], sample[AREA] * visible)
    moved[BOXES] = tf.where(window.clip_boxes, inside[BOXES], moved[BOXES])
    for name in columns_of(sample, "points"):
        moved[name] = tf.where(window.clip_boxes, inside[name], moved[name])
    for name in columns_of(sample, "masks"):
        moved[name] = sample[name][:, window.begin_yx[0] : end_yx[0], window.begin_yx[1] : end_yx[1]]
    return keep_boxes(moved, ((visible >= window.min_visible) & (visible > 0)) | keeps_all)


def draw_kind(kinds: Sequence[object], seed: tf.Tensor) -> tf.Tensor:
    """Draw an index into `kinds`, int32 [], uniformly."""
    return tf.random.stateless_uniform([], seed, maxval=len(kinds), dtype=tf.int32)


def of_kind(values: Sequence[object], kind: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return the value at index `kind`."""
    return tf.constant(values[0], dtype) if len(set(values)) == 1 else tf.gather(tf.constant(values, dtype), kind)


def window_of_kind(
    kinds: Sequence[WindowKind], kind: tf.Tensor, boxes_yxyx_rel: tf.Tensor, image_hw: tf.Tensor, seed: tf.Tensor
) -> Window:
    """Draw a window with the settings at index `kind`."""
    window_seed, chance_seed = split_seed(seed)
    shapes = [((k.min_aspect_ratio, k.max_aspect_ratio), (max(k.min_area, _MIN_AREA), k.max_area)) for k in kinds]
    distinct = sorted(set(shapes))  # ranges cannot be tensors; usually all kinds have the same
    candidates = [
        tf.image.stateless_sample_distorted_bounding_box(
            tf.concat([image_hw, [3]], axis=0),
            tf.clip_by_value(boxes_yxyx_rel, 0.0, 1.0)[tf.newaxis],
            window_seed,
            min_object_covered=of_kind([k.min_object_covered for k in kinds], kind, tf.float32),
            aspect_ratio_range=aspect_ratios,
            area_range=areas,
            max_attempts=_MAX_CROP_ATTEMPTS,
            use_image_if_no_bounding_boxes=True,
        )
        for aspect_ratios, areas in distinct
    ]
    which = of_kind([distinct.index(shape) for shape in shapes], kind, tf.int32)
    begin_yx = tf.stack([begin[:2] for begin, _, _ in candidates])[which]
    size_hw = tf.stack([size[:2] for _, size, _ in candidates])[which]
    is_cut = tf.random.stateless_uniform([], chance_seed) >= of_kind([k.random_coef for k in kinds], kind, tf.float32)
    return Window(
        begin_yx=tf.where(is_cut, begin_yx, 0),
        size_hw=tf.where(is_cut, size_hw, image_hw),
        min_visible=tf.where(is_cut, of_kind([k.overlap_thresh for k in kinds], kind, tf.float32), -1.0),
        clip_boxes=is_cut & of_kind([k.clip_boxes for k in kinds], kind, tf.bool),
    )


def _window_of_aspect_ratio(crop: RandomCropToAspectRatio, image_hw: tf.Tensor, seed: tf.Tensor) -> Window:
    height, width = tf.unstack(tf.cast(image_hw, tf.float32))
    fitting_hw = tf.cast(tf.round(tf.stack([width / crop.aspect_ratio, height * crop.aspect_ratio])), tf.int32)
    size_hw = tf.clip_by_value(fitting_hw, 1, image_hw)
    rest_hw = tf.cast(image_hw - size_hw, tf.float32)
    return Window(
        begin_yx=tf.cast(tf.floor(tf.random.stateless_uniform([2], seed) * (rest_hw + 1)), tf.int32),
        size_hw=size_hw,
        min_visible=tf.constant(crop.overlap_thresh),
        clip_boxes=tf.constant(crop.clip_boxes),
    )
