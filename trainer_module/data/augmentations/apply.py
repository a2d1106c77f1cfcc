"""Apply configured augmentations."""

import itertools
from collections.abc import Sequence
from functools import partial

import tensorflow as tf

from detloom.schemas.contracts.ground_truth import BOXES
from detloom.schemas.model.augmentations import (
    Augmentation,
    AutoAugmentImage,
    MixUp,
    Mosaic,
    RandAugment,
    RandomAbsolutePadImage,
    RandomAdjustBrightness,
    RandomAdjustContrast,
    RandomAdjustHue,
    RandomAdjustSaturation,
    RandomDownscaleToTargetPixels,
    RandomHorizontalFlip,
    RandomImageScale,
    RandomJitterBoxes,
    RandomPadImage,
    RandomRotation90,
    RandomSelfConcatImage,
    RandomVerticalFlip,
)
from detloom.schemas.model.color_augmentations import (
    AdjustGamma,
    GridMask,
    RandomBlackPatches,
    RandomCutout,
    RandomDistortColor,
    RandomJpegQuality,
    RandomPatchGaussian,
    RandomPixelValueScale,
    RandomRgbToGray,
)
from detloom.schemas.model.crop_augmentations import (
    RandomCropImage,
    RandomCropPadImage,
    RandomCropToAspectRatio,
    RandomScaleCropAndPadToSquare,
    RandomSquareCropByScale,
    SsdRandomCrop,
    SsdRandomCropFixedAspectRatio,
    SsdRandomCropPad,
    SsdRandomCropPadFixedAspectRatio,
)
from detloom.trainer_module.data.augmentations import (
    box_changes,
    color,
    crop_and_pad,
    crops,
    erase,
    geometry,
    pads,
    policies,
    scale_and_crop,
)
from detloom.trainer_module.data.sample import Sample, if_drawn, image_hw_of

_BEFORE_RESIZE = (
    crops.WindowCrop
    | RandomCropPadImage
    | SsdRandomCropFixedAspectRatio
    | SsdRandomCropPad
    | SsdRandomCropPadFixedAspectRatio
    | RandomScaleCropAndPadToSquare
    | RandomSquareCropByScale
    | RandomPadImage
    | RandomAbsolutePadImage
    | RandomImageScale
    | RandomDownscaleToTargetPixels
    | RandomRotation90
    | RandomJitterBoxes
    | RandomSelfConcatImage
    | RandomJpegQuality
    | RandomPatchGaussian
    | AutoAugmentImage
    | RandAugment
)


_FLIPS = RandomHorizontalFlip | RandomVerticalFlip
_FILL_BELOW_AND_RIGHT = RandomScaleCropAndPadToSquare | SsdRandomCropPadFixedAspectRatio

_Seeded = tuple[Augmentation, tf.Tensor]


def split_at_resize(pairs: Sequence[_Seeded]) -> tuple[list[_Seeded], list[_Seeded]]:
    """Split the augmentations into those that run before the image is resized and those that run after, in order.

    A flip also runs before if a later augmentation pads the image below and to the right: if it ran afterwards, the
    padding would be above or to the left.
    """
    before: list[_Seeded] = []
    after: list[_Seeded] = []
    for pair in pairs:
        if not runs_before_resize(pair[0]):
            after.append(pair)
            continue
        if isinstance(pair[0], _FILL_BELOW_AND_RIGHT):
            before += [seeded for seeded in after if isinstance(seeded[0], _FLIPS)]
            after = [seeded for seeded in after if not isinstance(seeded[0], _FLIPS)]
        before.append(pair)
    return before, after


def runs_before_resize(augmentation: Augmentation) -> bool:
    """Return True for crops (no pixel is resized in vain) and for changes of size, of boxes, or in units of pixels.

    The others run after the resize, where there are usually fewer pixels.
    """
    return isinstance(augmentation, _BEFORE_RESIZE)


def apply_all(augmentations: Sequence[Augmentation], sample: Sample, seeds: Sequence[tf.Tensor]) -> Sample:
    """Apply the augmentations in order. Consecutive color changes are applied together, which is faster."""
    pairs = zip(augmentations, seeds, strict=True)
    for changes_colors, group in itertools.groupby(pairs, lambda pair: isinstance(pair[0], color.ColorChange)):
        members = list(group)
        if changes_colors:
            changes = [change for change, _ in members if isinstance(change, color.ColorChange)]
            sample = color.change_colors(changes, sample, [seed for _, seed in members])
            continue
        for augmentation, seed in members:
            sample = apply_augmentation(augmentation, sample, seed)
    return sample


@tf.autograph.experimental.do_not_convert  # AutoGraph does not know `match`
def apply_augmentation(augmentation: Augmentation, sample: Sample, seed: tf.Tensor) -> Sample:
    match augmentation:
        case RandomHorizontalFlip(probability=probability):
            flip = partial(geometry.flip_horizontally, keypoint_permutation=augmentation.keypoint_flip_permutation)
            return if_drawn(probability, seed, sample, flip)
        case RandomVerticalFlip(probability=probability):
            flip = partial(geometry.flip_vertically, keypoint_permutation=augmentation.keypoint_flip_permutation)
            return if_drawn(probability, seed, sample, flip)
        case RandomRotation90(probability=probability):
            turn = partial(
                geometry.rotate_counter_clockwise, keypoint_permutation=augmentation.keypoint_rot_permutation
            )
            return if_drawn(probability, seed, sample, turn)
        case RandomCropImage() | SsdRandomCrop() | RandomCropToAspectRatio():
            window = crops.draw_window(augmentation, sample[BOXES], image_hw_of(sample), seed)
            return crops.cut(sample, window)
        case RandomCropPadImage():
            return crop_and_pad.random_crop_pad(augmentation, sample, seed)
        case SsdRandomCropFixedAspectRatio():
            return crop_and_pad.ssd_random_crop_fixed_aspect_ratio(augmentation, sample, seed)
        case SsdRandomCropPad():
            return crop_and_pad.ssd_random_crop_pad(augmentation, sample, seed)
        case SsdRandomCropPadFixedAspectRatio():
            return crop_and_pad.ssd_random_crop_pad_fixed_aspect_ratio(augmentation, sample, seed)
        case RandomScaleCropAndPadToSquare():
            return scale_and_crop.scale_crop_and_pad(augmentation, sample, seed)
        case RandomSquareCropByScale():
            return scale_and_crop.square_crop_by_scale(augmentation, sample, seed)
        case RandomPadImage():
            return pads.random_pad(augmentation, sample, seed)
        case RandomAbsolutePadImage():
            return pads.random_absolute_pad(augmentation, sample, seed)
        case RandomImageScale():
            return scale_and_crop.random_image_scale(augmentation, sample, seed)
        case RandomDownscaleToTargetPixels():
            return scale_and_crop.random_downscale(augmentation, sample, seed)
        case RandomJitterBoxes():
            return box_changes.jitter_boxes(augmentation, sample, seed)
        case RandomSelfConcatImage():
            return box_changes.self_concat(augmentation, sample, seed)
        case (
            RandomAdjustBrightness()
            | RandomAdjustContrast()
            | RandomAdjustHue()
            | RandomAdjustSaturation()
            | RandomDistortColor()
        ):
            return color.change_colors([augmentation], sample, [seed])
        case RandomRgbToGray():
            return color.random_gray(augmentation, sample, seed)
        case RandomPixelValueScale():
            return color.random_pixel_value_scale(augmentation, sample, seed)
        case AdjustGamma():
            return color.adjust_gamma(augmentation, sample)
        case RandomJpegQuality():
            return color.random_jpeg_quality(augmentation, sample, seed)
        case RandomPatchGaussian():
            return color.random_patch_gaussian(augmentation, sample, seed)
        case RandomBlackPatches():
            return erase.random_black_patches(augmentation, sample, seed)
        case RandomCutout():
            return erase.random_cutout(augmentation, sample, seed)
        case GridMask():
            return erase.random_grid_mask(augmentation, sample, seed)
        case AutoAugmentImage():
            return policies.auto_augment(augmentation, sample, seed)
        case RandAugment():
            return policies.rand_augment(augmentation, sample, seed)
        case Mosaic() | MixUp():
            return sample  # applied to whole batches; see `mix_batch`
    raise AssertionError(f"no such augmentation: {augmentation}")
