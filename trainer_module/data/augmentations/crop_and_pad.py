"""Crops followed by padding or by a crop to an aspect ratio."""

from collections.abc import Sequence

import tensorflow as tf

from detloom.schemas.contracts.ground_truth import BOXES
from detloom.schemas.model.crop_augmentations import (
    RandomCropPadImage,
    RandomCropToAspectRatio,
    SsdRandomCropFixedAspectRatio,
    SsdRandomCropOperation,
    SsdRandomCropPad,
    SsdRandomCropPadFixedAspectRatio,
    SsdRandomCropPadOperation,
)
from detloom.trainer_module.data.augmentations.crops import (
    SSD_OPERATIONS,
    cut,
    draw_kind,
    draw_window,
    of_kind,
    window_of_kind,
)
from detloom.trainer_module.data.augmentations.pads import pad_at_random, pad_to_aspect_ratio
from detloom.trainer_module.data.sample import Sample, image_hw_of, split_seed

# The reference's six operations: all of `SSD_OPERATIONS` except the one without a minimum overlap.
_SSD_PAD_OPERATIONS = tuple(SsdRandomCropPadOperation(**vars(operation)) for operation in SSD_OPERATIONS[1:])


def random_crop_pad(config: RandomCropPadImage, sample: Sample, seed: tf.Tensor) -> Sample:
    return _crop_and_pad([config], config.pad_color, tf.constant(0), sample, seed)


def ssd_random_crop_pad(config: SsdRandomCropPad, sample: Sample, seed: tf.Tensor) -> Sample:
    kind_seed, rest_seed = split_seed(seed)
    kinds = config.operations or _SSD_PAD_OPERATIONS
    kind = draw_kind(kinds, kind_seed)
    colors = [(k.pad_color_r, k.pad_color_g, k.pad_color_b) for k in kinds]
    color = of_kind(colors, kind, tf.float32) if config.operations else ()
    return _crop_and_pad(kinds, color, kind, sample, rest_seed)


def ssd_random_crop_fixed_aspect_ratio(
    config: SsdRandomCropFixedAspectRatio, sample: Sample, seed: tf.Tensor
) -> Sample:
    """Crop twice: the second crop corrects rounding, and crops images that the first one left whole."""
    kind_seed, window_seed, ratio_seed = split_seed(seed, 3)
    ratio = config.aspect_ratio
    kinds = [
        SsdRandomCropOperation(**{**vars(kind), "min_aspect_ratio": ratio, "max_aspect_ratio": ratio})
        for kind in config.operations or SSD_OPERATIONS
    ]
    window = window_of_kind(kinds, draw_kind(kinds, kind_seed), sample[BOXES], image_hw_of(sample), window_seed)
    sample = cut(sample, window)
    to_ratio = RandomCropToAspectRatio(aspect_ratio=ratio)
    return cut(sample, draw_window(to_ratio, sample[BOXES], image_hw_of(sample), ratio_seed))


def ssd_random_crop_pad_fixed_aspect_ratio(
    config: SsdRandomCropPadFixedAspectRatio, sample: Sample, seed: tf.Tensor
) -> Sample:
    kind_seed, window_seed, pad_seed = split_seed(seed, 3)
    kinds, image_hw = config.operations or SSD_OPERATIONS, image_hw_of(sample)
    kind = draw_kind(kinds, kind_seed)
    sample = cut(sample, window_of_kind(kinds, kind, sample[BOXES], image_hw, window_seed))
    return pad_to_aspect_ratio(config, sample, pad_seed)


def _crop_and_pad(
    kinds: Sequence[RandomCropPadImage | SsdRandomCropPadOperation],
    color: tuple[float, ...] | tf.Tensor,
    kind: tf.Tensor,
    sample: Sample,
    seed: tf.Tensor,
) -> Sample:
    """Crop, then pad; the limits of the padded size are relative to the image before the crop."""
    window_seed, pad_seed = split_seed(seed)
    image_hw = image_hw_of(sample)
    cropped = cut(sample, window_of_kind(kinds, kind, sample[BOXES], image_hw, window_seed))
    hw = tf.cast(image_hw, tf.float32)
    min_hw = tf.cast(hw * of_kind([tuple(k.min_padded_size_ratio) for k in kinds], kind, tf.float32), tf.int32)
    max_hw = tf.cast(hw * of_kind([tuple(k.max_padded_size_ratio) for k in kinds], kind, tf.float32), tf.int32)
    return pad_at_random(cropped, min_hw, max_hw, color, pad_seed)
