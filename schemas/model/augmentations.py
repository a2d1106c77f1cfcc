"""Random augmentations of training images, applied in the listed order.

Augmentations that are measured in pixels, such as crops, padding and policies, run before the image is resized; flips,
colors and erased patches run after it. `Mosaic` and `MixUp`, which combine several images of a batch, run last;
`train.last_steps_without_mixing` turns them off at the end of training. Names and defaults are those of the Object
Detection API's preprocessor. Colors are 0 to 255; areas and overlaps are shares from 0 to 1.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from detloom.schemas.errors import Positive, PositiveInt, Ranged, Share, check, check_fields
from detloom.schemas.model.color_augmentations import ColorAugmentation
from detloom.schemas.model.crop_augmentations import (
    MAX_SCALE,
    RandomCropImage,
    RandomCropPadImage,
    RandomCropToAspectRatio,
    RandomScaleCropAndPadToSquare,
    RandomSquareCropByScale,
    SsdRandomCrop,
    SsdRandomCropFixedAspectRatio,
    SsdRandomCropPad,
    SsdRandomCropPadFixedAspectRatio,
    check_color,
)
from detloom.schemas.model.network import MAX_IMAGE_SIDE

JitterMode = Literal[
    "DEFAULT",
    "EXPAND",
    "SHRINK",
    "EXPAND_SYMMETRIC",
    "SHRINK_SYMMETRIC",
    "EXPAND_SYMMETRIC_XY",
    "SHRINK_SYMMETRIC_XY",
]


@dataclass(frozen=True, kw_only=True)
class _Flip:
    probability: float = 0.5
    """Probability of the flip."""
    keypoint_flip_permutation: tuple[int, ...] = ()
    """New order of the keypoints, so that, for example, left and right eye are swapped; empty keeps the order."""

    def __post_init__(self) -> None:
        check_fields(self, "0 to 1", "probability")
        _check_permutation(self.keypoint_flip_permutation, "keypoint_flip_permutation")


@dataclass(frozen=True, kw_only=True)
class RandomHorizontalFlip(_Flip):
    """Flip the image horizontally."""


@dataclass(frozen=True, kw_only=True)
class RandomVerticalFlip(_Flip):
    """Flip the image vertically."""


@dataclass(frozen=True, kw_only=True)
class RandomRotation90:
    """Rotate the image by 90 degrees, counter-clockwise."""

    probability: float = 0.5
    """Probability of the rotation."""
    keypoint_rot_permutation: tuple[int, ...] = ()
    """New order of the keypoints; empty keeps the order."""

    def __post_init__(self) -> None:
        check_fields(self, "0 to 1", "probability")
        _check_permutation(self.keypoint_rot_permutation, "keypoint_rot_permutation")


@dataclass(frozen=True, kw_only=True)
class RandomAdjustBrightness(Ranged):
    """Change the brightness: add the same random value to all pixels."""

    max_delta: Share = 0.2
    """Largest absolute change, as a share of full white."""


@dataclass(frozen=True, kw_only=True)
class _RandomFactor:
    min_delta: float = 0.8
    """Smallest factor."""
    max_delta: float = 1.25
    """Largest factor."""

    def __post_init__(self) -> None:
        check(0 <= self.min_delta <= self.max_delta, "min_delta", self.min_delta, "0 to max_delta")


@dataclass(frozen=True, kw_only=True)
class RandomAdjustContrast(_RandomFactor):
    """Change the contrast: scale each pixel's difference from the image's mean by a random factor."""


@dataclass(frozen=True, kw_only=True)
class RandomAdjustHue(Ranged):
    """Rotate the hue by a random angle."""

    max_delta: Annotated[float, "0 to 0.5"] = 0.02
    """Largest angle, as a share of the color circle."""


@dataclass(frozen=True, kw_only=True)
class RandomAdjustSaturation(_RandomFactor):
    """Multiply the saturation by a random factor."""


def _check_permutation(permutation: tuple[int, ...], field: str) -> None:
    is_one = sorted(permutation) == list(range(len(permutation)))
    check(is_one, field, permutation, "each number from 0 on once")


@dataclass(frozen=True, kw_only=True)
class RandomAbsolutePadImage:
    """Place the image at a random position in a larger image."""

    max_height_padding: int = 0
    """Upper bound (exclusive) of the padding added to the height, in pixels."""
    max_width_padding: int = 0
    """Upper bound (exclusive) of the padding added to the width, in pixels."""
    pad_color: tuple[float, ...] = ()
    """Red, green and blue of the padding, 0 to 255; empty uses the image's mean color."""

    def __post_init__(self) -> None:
        check_fields(self, f"0 to {MAX_IMAGE_SIDE}", "max_height_padding", "max_width_padding")
        check_color(self.pad_color)


@dataclass(frozen=True, kw_only=True)
class RandomPadImage:
    """Place the image at a random position in a larger image. Sizes below the image's own size are raised to it."""

    min_image_height: int = 0
    """Smallest height after padding, in pixels."""
    min_image_width: int = 0
    """Smallest width after padding, in pixels."""
    max_image_height: int = 0
    """Upper bound (exclusive) of the height after padding, in pixels; 0 uses twice the image's height."""
    max_image_width: int = 0
    """Upper bound (exclusive) of the width after padding, in pixels; 0 uses twice the image's width."""
    pad_color: tuple[float, ...] = ()
    """Red, green and blue of the padding, 0 to 255; empty uses the image's mean color."""

    def __post_init__(self) -> None:
        sizes = ("min_image_height", "min_image_width", "max_image_height", "max_image_width")
        check_fields(self, f"0 to {MAX_IMAGE_SIDE}", *sizes)
        for height, width in (sizes[:2], sizes[2:]):
            alike = (getattr(self, height) > 0) == (getattr(self, width) > 0)
            check(alike, height, getattr(self, height), f"above 0 if {width} is, and only then", width)
        check_color(self.pad_color)


@dataclass(frozen=True, kw_only=True)
class RandomImageScale:
    """Scale the image by a random factor. This affects later augmentations that are measured in pixels."""

    min_scale_ratio: float = 0.5
    """Smallest factor."""
    max_scale_ratio: float = 2.0
    """Largest factor."""

    def __post_init__(self) -> None:
        ratio = self.min_scale_ratio
        check(0 < ratio <= self.max_scale_ratio, "min_scale_ratio", ratio, "above 0, at most max_scale_ratio")
        most = self.max_scale_ratio
        check(most <= MAX_SCALE, "max_scale_ratio", most, f"at most {MAX_SCALE}")


@dataclass(frozen=True, kw_only=True)
class RandomDownscaleToTargetPixels(Ranged):
    """Scale an image down to a random number of pixels, unless it has fewer."""

    min_target_pixels: PositiveInt = 300_000
    """Smallest number of pixels."""
    max_target_pixels: int = 800_000
    """Upper bound (exclusive) of the number of pixels."""
    random_coef: Share = 0.0
    """Probability of leaving the image unchanged."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self.min_target_pixels < self.max_target_pixels,
            "min_target_pixels",
            self.min_target_pixels,
            "less than max_target_pixels",
        )
        most = MAX_IMAGE_SIDE**2
        check(self.max_target_pixels <= most, "max_target_pixels", self.max_target_pixels, f"at most {most}")


@dataclass(frozen=True, kw_only=True)
class RandomJitterBoxes(Ranged):
    """Move the edges of boxes randomly, like imprecise labels. Masks and keypoints do not change."""

    ratio: Share = 0.05
    """Largest change of a side, as a share of the side."""
    jitter_mode: JitterMode = "DEFAULT"
    """`DEFAULT` moves each edge independently; `EXPAND` and `SHRINK` move it in one direction only. `..._SYMMETRIC`
    moves opposite edges equally, so that the center does not move; `..._SYMMETRIC_XY` also uses the same factor for
    height and width."""


@dataclass(frozen=True, kw_only=True)
class RandomSelfConcatImage(Ranged):
    """Append a copy of the image below it, beside it, or both."""

    concat_vertical_probability: Share = 0.1
    """Probability of a copy below."""
    concat_horizontal_probability: Share = 0.1
    """Probability of a copy beside."""


# --- policies ---------------------------------------------------------------------------------------------------------


PolicyName = Literal["v0", "v1", "v2", "v3"]


@dataclass(frozen=True, kw_only=True)
class AutoAugmentImage:
    """Apply a random sub-policy of a policy learned on COCO."""

    policy_name: PolicyName = "v0"
    """Name of the policy; v0 is the paper's."""


@dataclass(frozen=True, kw_only=True)
class RandAugment(Ranged):
    """Apply a few random operations, all with the same magnitude."""

    num_layers: Annotated[int, "1 to 32"] = 1
    """Number of operations, applied in sequence."""
    magnitude: Annotated[float, "0 to 30"] = 15.0
    """Magnitude of the operations; the learned policies use at most 10."""


PolicyAugmentation = AutoAugmentImage | RandAugment


# --- mixing -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Mosaic:
    """Combine four images around a random point; each is scaled and cropped to fill its quadrant (arXiv:2004.10934)."""

    probability: float = 1.0
    """Probability of the augmentation."""
    min_center: float = 0.25
    """Smallest distance of the point from the upper and left edges, as a share of the side."""
    max_center: float = 0.75
    """Largest distance of the point from the upper and left edges, as a share of the side."""
    min_scale: float = 0.5
    """Smallest scale of the images; it is raised where an image would not fill its quadrant."""
    max_scale: float = 1.0
    """Largest scale of the images."""
    overlap_thresh: float = 0.3
    """Smallest visible share of a box for which the box is kept."""

    def __post_init__(self) -> None:
        check_fields(self, "0 to 1", "probability", "overlap_thresh")
        check(0 < self.min_center <= self.max_center, "min_center", self.min_center, "above 0, at most max_center")
        check(self.max_center < 1, "max_center", self.max_center, "less than 1")
        check(0 < self.min_scale <= self.max_scale, "min_scale", self.min_scale, "above 0, at most max_scale")


@dataclass(frozen=True, kw_only=True)
class MixUp(Ranged):
    """Blend two images and keep the boxes of both (arXiv:1902.04103, 3.1).

    The weight of an image is drawn from a beta distribution; boxes are weighted in the loss like their image.
    """

    probability: Share = 1.0
    """Probability of the augmentation."""
    alpha: Positive = 1.5
    """Both parameters of the beta distribution; larger values give more equal weights."""


Mixing = Mosaic | MixUp

# --- all augmentations ------------------------------------------------------------------------------------------------

Augmentation = (
    RandomHorizontalFlip
    | RandomVerticalFlip
    | RandomRotation90
    | RandomAdjustBrightness
    | RandomAdjustContrast
    | RandomAdjustHue
    | RandomAdjustSaturation
    | RandomCropImage
    | RandomCropPadImage
    | RandomCropToAspectRatio
    | SsdRandomCrop
    | SsdRandomCropFixedAspectRatio
    | SsdRandomCropPad
    | SsdRandomCropPadFixedAspectRatio
    | RandomScaleCropAndPadToSquare
    | RandomSquareCropByScale
    | RandomPadImage
    | RandomAbsolutePadImage
    | RandomImageScale
    | RandomDownscaleToTargetPixels
    | RandomJitterBoxes
    | RandomSelfConcatImage
    | ColorAugmentation
    | PolicyAugmentation
    | Mixing
)
