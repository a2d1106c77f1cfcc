"""Random crops of training images, with or without padding around the crop.

Names and defaults are those of the Object Detection API's preprocessor. Areas and overlaps are shares from 0 to 1.
"""

from dataclasses import dataclass
from typing import Annotated

from detloom.schemas.errors import Positive, Ranged, Share, check, check_fields
from detloom.schemas.model.network import MAX_IMAGE_SIDE

MAX_SCALE = 16  # factor by which an augmentation may enlarge the sides of an image; its memory is the square of it


@dataclass(frozen=True, kw_only=True)
class _Crop:
    """Fields of all random crop windows."""

    min_object_covered: float = 0.0
    """Smallest share of some box that the window covers."""
    min_area: float = 0.0
    """Smallest area of the window, as a share of the image's area."""
    max_area: float
    """Largest area of the window, as a share of the image's area."""
    overlap_thresh: float = 0.0
    """Smallest share of a box inside the window for which the box is kept."""
    random_coef: float = 0.0
    """Probability of leaving the image unchanged."""
    clip_boxes: bool = True
    """Clip boxes at the window's edge."""

    def __post_init__(self) -> None:
        check_fields(self, "0 to 1", "min_object_covered", "overlap_thresh", "random_coef")
        areas = (self.min_area, self.max_area)
        check(0 <= areas[0] <= areas[1] <= 1, "min_area", areas[0], "0 to max_area, at most 1")
        check(areas[1] > 0, "max_area", areas[1], "above 0, at most 1")


@dataclass(frozen=True, kw_only=True)
class _CropWithRatios(_Crop):
    min_aspect_ratio: float
    """Smallest aspect ratio (width / height) of the window in pixels."""
    max_aspect_ratio: float
    """Largest aspect ratio (width / height) of the window in pixels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        ratios = (self.min_aspect_ratio, self.max_aspect_ratio)
        check(0 < ratios[0] <= ratios[1], "min_aspect_ratio", ratios[0], "above 0, at most max_aspect_ratio")


@dataclass(frozen=True, kw_only=True)
class _Padding:
    """Size after padding."""

    min_padded_size_ratio: tuple[float, ...] = (1.0, 1.0)
    """Smallest height and width after padding, relative to the image before the crop."""
    max_padded_size_ratio: tuple[float, ...] = (2.0, 2.0)
    """Upper bounds (exclusive) of height and width after padding, relative to the image before the crop."""

    def check_padding(self) -> None:
        for field in ("min_padded_size_ratio", "max_padded_size_ratio"):
            ratios = getattr(self, field)
            check(len(ratios) == 2 and min(ratios) > 0, field, ratios, "two numbers above 0, of height and width")
            check(max(ratios) <= MAX_SCALE, field, ratios, f"at most {MAX_SCALE}")


@dataclass(frozen=True, kw_only=True)
class RandomCropImage(_CropWithRatios):
    """Crop to a random window."""

    min_object_covered: float = 1.0
    min_aspect_ratio: float = 0.75
    max_aspect_ratio: float = 1.33
    min_area: float = 0.1
    max_area: float = 1.0
    overlap_thresh: float = 0.3


@dataclass(frozen=True, kw_only=True)
class SsdRandomCropOperation(_CropWithRatios):
    """One kind of crop window of `SsdRandomCrop` or `SsdRandomCropPadFixedAspectRatio`."""


@dataclass(frozen=True, kw_only=True)
class SsdRandomCrop:
    """Crop to a random window of a randomly chosen kind (arXiv:1512.02325, 2.2)."""

    operations: tuple[SsdRandomCropOperation, ...] = ()
    """Kinds of windows; empty uses the seven of the reference (coverage 0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)."""


@dataclass(frozen=True, kw_only=True)
class SsdRandomCropFixedAspectRatioOperation(_Crop):
    """One kind of crop window of `SsdRandomCropFixedAspectRatio`."""

    random_coef: float = 0.0
    """Probability of cropping the image to the aspect ratio only."""


@dataclass(frozen=True, kw_only=True)
class SsdRandomCropFixedAspectRatio(Ranged):
    """Crop like `SsdRandomCrop`, with windows of one aspect ratio.

    An image without a random crop is cropped to the aspect ratio too.
    """

    operations: tuple[SsdRandomCropFixedAspectRatioOperation, ...] = ()
    """Kinds of windows; empty uses the seven of the reference (coverage 0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)."""
    aspect_ratio: Positive = 1.0
    """Aspect ratio (width / height) of the result in pixels."""


@dataclass(frozen=True, kw_only=True)
class SsdRandomCropPadOperation(_Padding, _CropWithRatios):
    """One kind of crop window and padding of `SsdRandomCropPad`."""

    random_coef: float = 0.0
    """Probability of padding without a crop."""
    pad_color_r: float = 0.0
    """Red of the padding, 0 to 255."""
    pad_color_g: float = 0.0
    """Green of the padding, 0 to 255."""
    pad_color_b: float = 0.0
    """Blue of the padding, 0 to 255."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_padding()
        for field in ("pad_color_r", "pad_color_g", "pad_color_b"):
            color = getattr(self, field)
            check(0 <= color <= 255, field, color, "0 to 255")


@dataclass(frozen=True, kw_only=True)
class SsdRandomCropPad:
    """Crop like `SsdRandomCrop`, then place the crop at a random position in a larger image."""

    operations: tuple[SsdRandomCropPadOperation, ...] = ()
    """Kinds of windows; empty uses the six of the reference (coverage 0.1, 0.3, 0.5, 0.7, 0.9, 1.0, padded with the
    mean color of the crop)."""


@dataclass(frozen=True, kw_only=True)
class SsdRandomCropPadFixedAspectRatio(_Padding):
    """Crop like `SsdRandomCrop`, then pad with black at the bottom and at the right to an aspect ratio."""

    operations: tuple[SsdRandomCropOperation, ...] = ()
    """Kinds of windows; empty uses the seven of the reference (coverage 0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)."""
    aspect_ratio: float = 1.0
    """Aspect ratio (width / height) of the result in pixels."""
    min_padded_size_ratio: tuple[float, ...] = (1.0, 1.0)
    """Smallest height and width after padding, relative to the crop."""
    max_padded_size_ratio: tuple[float, ...] = (2.0, 2.0)
    """Upper bounds (exclusive) of height and width after padding, relative to the crop."""

    def __post_init__(self) -> None:
        check_fields(self, "above 0", "aspect_ratio")
        self.check_padding()


@dataclass(frozen=True, kw_only=True)
class RandomCropPadImage(_Padding, _CropWithRatios):
    """Crop to a random window, then place the crop at a random position in a larger image."""

    min_object_covered: float = 1.0
    min_aspect_ratio: float = 0.75
    max_aspect_ratio: float = 1.33
    min_area: float = 0.1
    max_area: float = 1.0
    overlap_thresh: float = 0.3
    random_coef: float = 0.0
    """Probability of padding without a crop."""
    pad_color: tuple[float, ...] = ()
    """Red, green and blue of the padding, 0 to 255; empty uses the mean color of the crop."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_padding()
        check_color(self.pad_color)


@dataclass(frozen=True, kw_only=True)
class RandomCropToAspectRatio(Ranged):
    """Crop to the largest window of an aspect ratio, at a random position."""

    aspect_ratio: Positive = 1.0
    """Aspect ratio (width / height) of the result in pixels."""
    overlap_thresh: Share = 0.3
    """Smallest share of a box inside the window for which the box is kept."""
    clip_boxes: bool = True
    """Clip boxes at the window's edge."""


@dataclass(frozen=True, kw_only=True)
class RandomSquareCropByScale(Ranged):
    """Crop to a square around a random point; parts of the square outside the image are black (arXiv:1904.07850)."""

    max_border: Annotated[int, f"1 to {MAX_IMAGE_SIDE}"] = 128
    """Smallest distance in pixels between the square's center and the image's edges. For a small image it is halved
    until it is less than half of the side."""
    scale_min: float = 0.6
    """Smallest side of the square, relative to the image's longer side."""
    scale_max: float = 1.3
    """Largest side of the square, relative to the image's longer side."""
    num_scales: Annotated[int, "1 to 1000"] = 8
    """Number of equally spaced scales to choose from."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(0 < self.scale_min <= self.scale_max, "scale_min", self.scale_min, "above 0, at most scale_max")
        check(self.scale_max <= MAX_SCALE, "scale_max", self.scale_max, f"at most {MAX_SCALE}")


@dataclass(frozen=True, kw_only=True)
class RandomScaleCropAndPadToSquare:
    """Scale by a random factor, then crop or pad to a square (EfficientDet's scale jitter)."""

    output_size: int = 512
    """Side of the square in pixels."""
    scale_min: float = 0.1
    """Smallest scale, relative to the scale at which the image fits the square."""
    scale_max: float = 2.0
    """Largest scale, relative to the scale at which the image fits the square."""

    def __post_init__(self) -> None:
        check_fields(self, "1 or more", "output_size")
        check(0 < self.scale_min <= self.scale_max, "scale_min", self.scale_min, "above 0, at most scale_max")
        check(self.scale_max <= MAX_SCALE, "scale_max", self.scale_max, f"at most {MAX_SCALE}")


def check_color(pad_color: tuple[float, ...]) -> None:
    check(len(pad_color) in (0, 3), "pad_color", pad_color, "none, or three numbers")
    check(all(0 <= value <= 255 for value in pad_color), "pad_color", pad_color, "0 to 255")
