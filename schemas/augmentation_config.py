"""Random changes to training pictures, applied in the order in which they are listed: crops, frames and whatever else
counts pixels before the resize; flips, colours and erased patches after it.

Names and defaults are those of the Object Detection API's preprocessor. Colours are 0 to 255, areas and overlaps are
shares from 0 to 1.
"""

from dataclasses import dataclass
from typing import Literal

from detloom.schemas.checks import check, check_fields
from detloom.schemas.color_augmentation_config import ColorAugmentation
from detloom.schemas.crop_augmentation_config import (
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
from detloom.schemas.mixing_config import Mixing
from detloom.schemas.policy_augmentation_config import PolicyAugmentation

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
class RandomHorizontalFlip:
    """Mirror left and right."""

    probability: float = 0.5
    """How often."""
    keypoint_flip_permutation: tuple[int, ...] = ()
    """Which keypoint takes the place of each, such as the left eye that of the right one; empty leaves all in place."""

    def __post_init__(self) -> None:
        check_fields(self, "0 to 1", "probability")
        _check_permutation(self.keypoint_flip_permutation, "keypoint_flip_permutation")


@dataclass(frozen=True, kw_only=True)
class RandomVerticalFlip:
    """Mirror top and bottom."""

    probability: float = 0.5
    """How often."""
    keypoint_flip_permutation: tuple[int, ...] = ()
    """Which keypoint takes the place of each; empty leaves all in place."""

    def __post_init__(self) -> None:
        check_fields(self, "0 to 1", "probability")
        _check_permutation(self.keypoint_flip_permutation, "keypoint_flip_permutation")


@dataclass(frozen=True, kw_only=True)
class RandomRotation90:
    """Turn by a quarter, counter-clockwise."""

    probability: float = 0.5
    """How often."""
    keypoint_rot_permutation: tuple[int, ...] = ()
    """Which keypoint takes the place of each; empty leaves all in place."""

    def __post_init__(self) -> None:
        check_fields(self, "0 to 1", "probability")
        _check_permutation(self.keypoint_rot_permutation, "keypoint_rot_permutation")


@dataclass(frozen=True, kw_only=True)
class RandomAdjustBrightness:
    """Add the same random amount to all pixels."""

    max_delta: float = 0.2
    """Largest amount, up or down, as a share of full white."""

    def __post_init__(self) -> None:
        check_fields(self, "0 to 1", "max_delta")


@dataclass(frozen=True, kw_only=True)
class RandomAdjustContrast:
    """Scale the distance of every pixel from the picture's mean by a random factor."""

    min_delta: float = 0.8
    """Smallest factor."""
    max_delta: float = 1.25
    """Largest factor."""

    def __post_init__(self) -> None:
        _check_deltas(self)


@dataclass(frozen=True, kw_only=True)
class RandomAdjustHue:
    """Turn the hue by a random amount."""

    max_delta: float = 0.02
    """Largest amount, as a share of the colour circle."""

    def __post_init__(self) -> None:
        check(0 <= self.max_delta <= 0.5, "max_delta", self.max_delta, "0 to 0.5")


@dataclass(frozen=True, kw_only=True)
class RandomAdjustSaturation:
    """Multiply the saturation by a random factor."""

    min_delta: float = 0.8
    """Smallest factor."""
    max_delta: float = 1.25
    """Largest factor."""

    def __post_init__(self) -> None:
        _check_deltas(self)


def _check_permutation(permutation: tuple[int, ...], field: str) -> None:
    is_one = sorted(permutation) == list(range(len(permutation)))
    check(is_one, field, permutation, "each number from 0 on once")


def _check_deltas(owner: RandomAdjustContrast | RandomAdjustSaturation) -> None:
    check(0 <= owner.min_delta <= owner.max_delta, "min_delta", owner.min_delta, "0 to max_delta")


@dataclass(frozen=True, kw_only=True)
class RandomAbsolutePadImage:
    """Put the picture at a random place of a larger one."""

    max_height_padding: int = 0
    """The picture's height grows by less than this many pixels."""
    max_width_padding: int = 0
    """The picture's width grows by less than this many pixels."""
    pad_color: tuple[float, ...] = ()
    """Red, green and blue around it, 0 to 255; empty takes the picture's mean."""

    def __post_init__(self) -> None:
        check_fields(self, "0 or more", "max_height_padding", "max_width_padding")
        check_color(self.pad_color)


@dataclass(frozen=True, kw_only=True)
class RandomPadImage:
    """Put the picture at a random place of a larger one; a size below the picture's own stands for that."""

    min_image_height: int = 0
    """Smallest height in pixels."""
    min_image_width: int = 0
    """Smallest width in pixels."""
    max_image_height: int = 0
    """The height stays below this; 0 takes twice the picture's."""
    max_image_width: int = 0
    """The width stays below this; 0 takes twice the picture's."""
    pad_color: tuple[float, ...] = ()
    """Red, green and blue around it, 0 to 255; empty takes the picture's mean."""

    def __post_init__(self) -> None:
        sizes = ("min_image_height", "min_image_width", "max_image_height", "max_image_width")
        check_fields(self, "0 or more", *sizes)
        for height, width in (sizes[:2], sizes[2:]):
            alike = (getattr(self, height) > 0) == (getattr(self, width) > 0)
            check(alike, height, getattr(self, height), f"above 0 if {width} is, and only then", width)
        check_color(self.pad_color)


@dataclass(frozen=True, kw_only=True)
class RandomImageScale:
    """Scale the picture by a random factor, which matters to what is in pixels: crops by scale, frames, patches."""

    min_scale_ratio: float = 0.5
    """Smallest factor."""
    max_scale_ratio: float = 2.0
    """Largest factor."""

    def __post_init__(self) -> None:
        ratio = self.min_scale_ratio
        check(0 < ratio <= self.max_scale_ratio, "min_scale_ratio", ratio, "above 0, at most max_scale_ratio")


@dataclass(frozen=True, kw_only=True)
class RandomDownscaleToTargetPixels:
    """Scale a picture down to a random number of pixels, unless it has fewer."""

    min_target_pixels: int = 300_000
    """Smallest number of pixels."""
    max_target_pixels: int = 800_000
    """The number stays below this."""
    random_coef: float = 0.0
    """How often the picture is left as it is."""

    def __post_init__(self) -> None:
        check_fields(self, "0 to 1", "random_coef")
        check_fields(self, "1 or more", "min_target_pixels")
        check(
            self.min_target_pixels < self.max_target_pixels,
            "min_target_pixels",
            self.min_target_pixels,
            "less than max_target_pixels",
        )


@dataclass(frozen=True, kw_only=True)
class RandomJitterBoxes:
    """Move the edges of boxes, as careless annotators would; masks and keypoints stay."""

    ratio: float = 0.05
    """Sides change by up to this share, in all."""
    jitter_mode: JitterMode = "DEFAULT"
    """Each edge alone (`DEFAULT`; `EXPAND` and `SHRINK` move it one way), or opposite edges alike so that the centre
    stays (`..._SYMMETRIC`), and height and width by the same factor (`..._SYMMETRIC_XY`)."""

    def __post_init__(self) -> None:
        check_fields(self, "0 to 1", "ratio")


@dataclass(frozen=True, kw_only=True)
class RandomSelfConcatImage:
    """Put a second copy of the picture below it, or beside it, or both."""

    concat_vertical_probability: float = 0.1
    """How often one stands below."""
    concat_horizontal_probability: float = 0.1
    """How often one stands beside."""

    def __post_init__(self) -> None:
        check_fields(self, "0 to 1", "concat_vertical_probability", "concat_horizontal_probability")


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
