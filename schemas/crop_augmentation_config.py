"""Random changes to training pictures that cut a window out of them, with or without a frame around it.

Names and defaults are those of the Object Detection API's preprocessor. Areas and overlaps are shares from 0 to 1.
"""

from dataclasses import dataclass

from detloom.schemas.checks import check, check_fields


@dataclass(frozen=True, kw_only=True)
class RandomCropImage:
    """Crop to a random window."""

    min_object_covered: float = 1.0
    """The window covers at least this share of some box."""
    min_aspect_ratio: float = 0.75
    """Smallest width / height of the window in pixels."""
    max_aspect_ratio: float = 1.33
    """Largest width / height of the window in pixels."""
    min_area: float = 0.1
    """Smallest share of the picture's area."""
    max_area: float = 1.0
    """Largest share of the picture's area."""
    overlap_thresh: float = 0.3
    """A box is kept if at least this share of it lies in the window."""
    random_coef: float = 0.0
    """How often the picture is left as it is."""
    clip_boxes: bool = True
    """Cut boxes at the window's edge."""

    def __post_init__(self) -> None:
        _check_shares(self)
        _check_ratios(self)


@dataclass(frozen=True, kw_only=True)
class SsdRandomCropOperation:
    """One kind of window that `SsdRandomCrop` or `SsdRandomCropPadFixedAspectRatio` draws from."""

    min_object_covered: float = 0.0
    """The window covers at least this share of some box."""
    min_aspect_ratio: float
    """Smallest width / height of the window in pixels."""
    max_aspect_ratio: float
    """Largest width / height of the window in pixels."""
    min_area: float = 0.0
    """Smallest share of the picture's area."""
    max_area: float
    """Largest share of the picture's area."""
    overlap_thresh: float = 0.0
    """A box is kept if at least this share of it lies in the window."""
    random_coef: float = 0.0
    """How often the picture is left as it is."""
    clip_boxes: bool = True
    """Cut boxes at the window's edge."""

    def __post_init__(self) -> None:
        _check_shares(self)
        _check_ratios(self)


@dataclass(frozen=True, kw_only=True)
class SsdRandomCrop:
    """Crop to a window of a kind drawn at random (arXiv:1512.02325, 2.2)."""

    operations: tuple[SsdRandomCropOperation, ...] = ()
    """The kinds; empty takes the reference's seven (coverage 0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)."""


@dataclass(frozen=True, kw_only=True)
class SsdRandomCropFixedAspectRatioOperation:
    """One kind of window that `SsdRandomCropFixedAspectRatio` draws from."""

    min_object_covered: float = 0.0
    """The window covers at least this share of some box."""
    min_area: float = 0.0
    """Smallest share of the picture's area."""
    max_area: float
    """Largest share of the picture's area."""
    overlap_thresh: float = 0.0
    """A box is kept if at least this share of it lies in the window."""
    random_coef: float = 0.0
    """How often the picture is cropped to the aspect ratio only."""
    clip_boxes: bool = True
    """Cut boxes at the window's edge."""

    def __post_init__(self) -> None:
        _check_shares(self)


@dataclass(frozen=True, kw_only=True)
class SsdRandomCropFixedAspectRatio:
    """As `SsdRandomCrop`, with windows of one aspect ratio; a picture left whole is cropped to it too."""

    operations: tuple[SsdRandomCropFixedAspectRatioOperation, ...] = ()
    """The kinds; empty takes the reference's seven (coverage 0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)."""
    aspect_ratio: float = 1.0
    """Width / height of the result in pixels."""

    def __post_init__(self) -> None:
        check_fields(self, "above 0", "aspect_ratio")


@dataclass(frozen=True, kw_only=True)
class SsdRandomCropPadOperation:
    """One kind of window and frame that `SsdRandomCropPad` draws from."""

    min_object_covered: float = 0.0
    """The window covers at least this share of some box."""
    min_aspect_ratio: float
    """Smallest width / height of the window in pixels."""
    max_aspect_ratio: float
    """Largest width / height of the window in pixels."""
    min_area: float = 0.0
    """Smallest share of the picture's area."""
    max_area: float
    """Largest share of the picture's area."""
    overlap_thresh: float = 0.0
    """A box is kept if at least this share of it lies in the window."""
    random_coef: float = 0.0
    """How often the picture is padded only."""
    clip_boxes: bool = True
    """Cut boxes at the window's edge."""
    min_padded_size_ratio: tuple[float, ...] = (1.0, 1.0)
    """Smallest height and width after padding, in those of the picture before the crop."""
    max_padded_size_ratio: tuple[float, ...] = (2.0, 2.0)
    """Height and width after padding stay below this, in those of the picture before the crop."""
    pad_color_r: float = 0.0
    """Red of the frame, 0 to 255."""
    pad_color_g: float = 0.0
    """Green of the frame, 0 to 255."""
    pad_color_b: float = 0.0
    """Blue of the frame, 0 to 255."""

    def __post_init__(self) -> None:
        _check_shares(self)
        _check_ratios(self)
        _check_padded_size(self)
        for field in ("pad_color_r", "pad_color_g", "pad_color_b"):
            check(0 <= getattr(self, field) <= 255, field, getattr(self, field), "0 to 255")


@dataclass(frozen=True, kw_only=True)
class SsdRandomCropPad:
    """Crop as `SsdRandomCrop`, then put the window at a random place of a larger picture."""

    operations: tuple[SsdRandomCropPadOperation, ...] = ()
    """The kinds; empty takes the reference's six (coverage 0.1, 0.3, 0.5, 0.7, 0.9, 1.0, padded with their mean)."""


@dataclass(frozen=True, kw_only=True)
class SsdRandomCropPadFixedAspectRatio:
    """Crop as `SsdRandomCrop`, then pad with black, below and to the right, to an aspect ratio."""

    operations: tuple[SsdRandomCropOperation, ...] = ()
    """The kinds; empty takes the reference's seven (coverage 0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)."""
    aspect_ratio: float = 1.0
    """Width / height of the result in pixels."""
    min_padded_size_ratio: tuple[float, ...] = (1.0, 1.0)
    """Smallest height and width after padding, in those of the window."""
    max_padded_size_ratio: tuple[float, ...] = (2.0, 2.0)
    """Height and width after padding stay below this, in those of the window."""

    def __post_init__(self) -> None:
        check_fields(self, "above 0", "aspect_ratio")
        _check_padded_size(self)


@dataclass(frozen=True, kw_only=True)
class RandomCropPadImage:
    """Crop to a random window, then put it at a random place of a larger picture."""

    min_object_covered: float = 1.0
    """The window covers at least this share of some box."""
    min_aspect_ratio: float = 0.75
    """Smallest width / height of the window in pixels."""
    max_aspect_ratio: float = 1.33
    """Largest width / height of the window in pixels."""
    min_area: float = 0.1
    """Smallest share of the picture's area."""
    max_area: float = 1.0
    """Largest share of the picture's area."""
    overlap_thresh: float = 0.3
    """A box is kept if at least this share of it lies in the window."""
    random_coef: float = 0.0
    """How often the picture is padded only."""
    clip_boxes: bool = True
    """Cut boxes at the window's edge."""
    min_padded_size_ratio: tuple[float, ...] = (1.0, 1.0)
    """Smallest height and width after padding, in those of the picture before the crop."""
    max_padded_size_ratio: tuple[float, ...] = (2.0, 2.0)
    """Height and width after padding stay below this, in those of the picture before the crop."""
    pad_color: tuple[float, ...] = ()
    """Red, green and blue around it, 0 to 255; empty takes the window's mean."""

    def __post_init__(self) -> None:
        _check_shares(self)
        _check_ratios(self)
        _check_padded_size(self)
        check_color(self.pad_color)


@dataclass(frozen=True, kw_only=True)
class RandomCropToAspectRatio:
    """Crop to the largest window of an aspect ratio, at a random place."""

    aspect_ratio: float = 1.0
    """Width / height of the result in pixels."""
    overlap_thresh: float = 0.3
    """A box is kept if at least this share of it lies in the window."""
    clip_boxes: bool = True
    """Cut boxes at the window's edge."""

    def __post_init__(self) -> None:
        check_fields(self, "above 0", "aspect_ratio")
        check_fields(self, "0 to 1", "overlap_thresh")


@dataclass(frozen=True, kw_only=True)
class RandomSquareCropByScale:
    """Cut out a square around a random place; what of it lies outside the picture is black (arXiv:1904.07850)."""

    max_border: int = 128
    """The square's centre keeps this distance in pixels from the picture's edges; in a smaller picture, half of that,
    or half of the half, until it is less than half of the side."""
    scale_min: float = 0.6
    """Smallest side of the square, in the picture's longer side."""
    scale_max: float = 1.3
    """Largest side of the square, in the picture's longer side."""
    num_scales: int = 8
    """How many sides there are to draw from, at equal distances."""

    def __post_init__(self) -> None:
        check_fields(self, "1 or more", "max_border", "num_scales")
        check(0 < self.scale_min <= self.scale_max, "scale_min", self.scale_min, "above 0, at most scale_max")


@dataclass(frozen=True, kw_only=True)
class RandomScaleCropAndPadToSquare:
    """Scale at random, then crop or pad to a square, as EfficientDet's jitter."""

    output_size: int = 512
    """Side of the square in pixels."""
    scale_min: float = 0.1
    """Smallest scale, relative to fitting the square."""
    scale_max: float = 2.0
    """Largest scale, relative to fitting the square."""

    def __post_init__(self) -> None:
        check_fields(self, "1 or more", "output_size")
        check(0 < self.scale_min <= self.scale_max, "scale_min", self.scale_min, "above 0, at most scale_max")


def check_color(pad_color: tuple[float, ...]) -> None:
    check(len(pad_color) in (0, 3), "pad_color", pad_color, "none, or three numbers")
    check(all(0 <= value <= 255 for value in pad_color), "pad_color", pad_color, "0 to 255")


def _check_shares(
    owner: RandomCropImage
    | RandomCropPadImage
    | SsdRandomCropOperation
    | SsdRandomCropFixedAspectRatioOperation
    | SsdRandomCropPadOperation,
) -> None:
    check_fields(owner, "0 to 1", "min_object_covered", "overlap_thresh", "random_coef")
    areas = (owner.min_area, owner.max_area)
    check(0 <= areas[0] <= areas[1] <= 1, "min_area", areas[0], "0 to max_area, at most 1")
    check(areas[1] > 0, "max_area", areas[1], "above 0, at most 1")


def _check_ratios(
    owner: RandomCropImage | RandomCropPadImage | SsdRandomCropOperation | SsdRandomCropPadOperation,
) -> None:
    ratios = (owner.min_aspect_ratio, owner.max_aspect_ratio)
    check(0 < ratios[0] <= ratios[1], "min_aspect_ratio", ratios[0], "above 0, at most max_aspect_ratio")


def _check_padded_size(
    owner: RandomCropPadImage | SsdRandomCropPadOperation | SsdRandomCropPadFixedAspectRatio,
) -> None:
    for field in ("min_padded_size_ratio", "max_padded_size_ratio"):
        ratios = getattr(owner, field)
        check(len(ratios) == 2 and min(ratios) > 0, field, ratios, "two numbers above 0, of height and width")
