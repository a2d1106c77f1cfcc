"""Random changes to training pictures, applied in the order in which they are listed.

Names and defaults are those of the Object Detection API's preprocessor. Colours are 0 to 255, areas and overlaps are
shares from 0 to 1.
"""

from dataclasses import dataclass

from detloom.schemas.checks import check, check_fields


@dataclass(frozen=True, kw_only=True)
class RandomHorizontalFlip:
    """Mirror left and right."""

    probability: float = 0.5
    """How often."""

    def __post_init__(self) -> None:
        check_fields(self, "0 to 1", "probability")


@dataclass(frozen=True, kw_only=True)
class RandomVerticalFlip:
    """Mirror top and bottom."""

    probability: float = 0.5
    """How often."""

    def __post_init__(self) -> None:
        check_fields(self, "0 to 1", "probability")


@dataclass(frozen=True, kw_only=True)
class RandomRotation90:
    """Turn by a quarter, counter-clockwise."""

    probability: float = 0.5
    """How often."""

    def __post_init__(self) -> None:
        check_fields(self, "0 to 1", "probability")


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


def _check_deltas(owner: RandomAdjustContrast | RandomAdjustSaturation) -> None:
    check(0 <= owner.min_delta <= owner.max_delta, "min_delta", owner.min_delta, "0 to max_delta")


def _check_window(owner: "RandomCropImage | SsdRandomCropOperation") -> None:
    check_fields(owner, "0 to 1", "min_object_covered", "overlap_thresh", "random_coef")
    ratios, areas = (owner.min_aspect_ratio, owner.max_aspect_ratio), (owner.min_area, owner.max_area)
    check(0 < ratios[0] <= ratios[1], "min_aspect_ratio", ratios[0], "above 0, at most max_aspect_ratio")
    check(0 <= areas[0] <= areas[1] <= 1, "min_area", areas[0], "0 to max_area, at most 1")
    check(areas[1] > 0, "max_area", areas[1], "above 0, at most 1")


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
        _check_window(self)


@dataclass(frozen=True, kw_only=True)
class SsdRandomCropOperation:
    """One kind of window that `SsdRandomCrop` draws from."""

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
        _check_window(self)


@dataclass(frozen=True, kw_only=True)
class SsdRandomCrop:
    """Crop to a window of a kind drawn at random (arXiv:1512.02325, 2.2)."""

    operations: tuple[SsdRandomCropOperation, ...] = ()
    """The kinds; empty takes the reference's seven (coverage 0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)."""


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
        check(len(self.pad_color) in (0, 3), "pad_color", self.pad_color, "none, or three numbers")
        check(all(0 <= value <= 255 for value in self.pad_color), "pad_color", self.pad_color, "0 to 255")


Augmentation = (
    RandomHorizontalFlip
    | RandomVerticalFlip
    | RandomRotation90
    | RandomAdjustBrightness
    | RandomAdjustContrast
    | RandomAdjustHue
    | RandomAdjustSaturation
    | RandomCropImage
    | SsdRandomCrop
    | RandomScaleCropAndPadToSquare
    | RandomAbsolutePadImage
)
