"""Random changes of colours, and of small parts of a picture; boxes stay where they are.

Names and defaults are those of the Object Detection API's preprocessor, as far as it has them. Colours are 0 to 255.
"""

from dataclasses import dataclass
from typing import Literal

from detloom.schemas.checks import check, check_fields


@dataclass(frozen=True, kw_only=True)
class RandomDistortColor:
    """Brightness, saturation, hue and contrast by random amounts, of the sizes that SSD is trained with."""

    color_ordering: Literal[0, 1] = 0
    """0: brightness, saturation, hue, contrast; 1: brightness, contrast, saturation, hue."""


@dataclass(frozen=True, kw_only=True)
class RandomRgbToGray:
    """Make a picture grey; it keeps three channels."""

    probability: float = 0.1
    """How often."""

    def __post_init__(self) -> None:
        check_fields(self, "0 to 1", "probability")


@dataclass(frozen=True, kw_only=True)
class RandomPixelValueScale:
    """Multiply each value of each pixel by a random factor of its own."""

    minval: float = 0.9
    """Smallest factor."""
    maxval: float = 1.1
    """Largest factor."""

    def __post_init__(self) -> None:
        check(0 <= self.minval <= self.maxval, "minval", self.minval, "0 to maxval")


@dataclass(frozen=True, kw_only=True)
class AdjustGamma:
    """Raise colours, as shares of full white, to a power. Not random."""

    gamma: float = 1.0
    """The power; above 1 darkens."""
    gain: float = 1.0
    """What the result is multiplied by."""

    def __post_init__(self) -> None:
        check_fields(self, "0 or more", "gamma", "gain")


@dataclass(frozen=True, kw_only=True)
class RandomJpegQuality:
    """Encode the picture as a JPEG of random quality and decode it again, before it is resized."""

    random_coef: float = 0.0
    """How often the picture is left as it is."""
    min_jpeg_quality: int = 0
    """Smallest quality."""
    max_jpeg_quality: int = 100
    """The quality is less than this."""

    def __post_init__(self) -> None:
        check_fields(self, "0 to 1", "random_coef")
        low, high = self.min_jpeg_quality, self.max_jpeg_quality
        check(0 <= low < high, "min_jpeg_quality", low, "0 or more, less than max_jpeg_quality")
        check(high <= 101, "max_jpeg_quality", high, "at most 101")


@dataclass(frozen=True, kw_only=True)
class RandomPatchGaussian:
    """Add noise to a square patch, before the picture is resized (arXiv:1906.02611)."""

    random_coef: float = 0.0
    """How often the picture is left as it is."""
    min_patch_size: int = 1
    """Smallest side of the patch in pixels."""
    max_patch_size: int = 250
    """The side is less than this."""
    min_gaussian_stddev: float = 0.0
    """Smallest standard deviation of the noise, as a share of full white."""
    max_gaussian_stddev: float = 1.0
    """Largest standard deviation of the noise, as a share of full white."""

    def __post_init__(self) -> None:
        check_fields(self, "0 to 1", "random_coef")
        sizes, deviations = (
            (self.min_patch_size, self.max_patch_size),
            (self.min_gaussian_stddev, self.max_gaussian_stddev),
        )
        check(1 <= sizes[0] < sizes[1], "min_patch_size", sizes[0], "1 or more, less than max_patch_size")
        check(0 <= deviations[0] <= deviations[1], "min_gaussian_stddev", deviations[0], "0 to max_gaussian_stddev")


@dataclass(frozen=True, kw_only=True)
class RandomBlackPatches:
    """Make small squares black."""

    max_black_patches: int = 10
    """How many squares are tried."""
    probability: float = 0.5
    """How often each of them is there."""
    size_to_image_ratio: float = 0.1
    """Side of a square, as a share of the picture's shorter side."""

    def __post_init__(self) -> None:
        check_fields(self, "0 or more", "max_black_patches")
        check_fields(self, "0 to 1", "probability", "size_to_image_ratio")


@dataclass(frozen=True, kw_only=True)
class RandomCutout:
    """Make squares grey whose centres are anywhere in the picture (arXiv:1708.04552)."""

    probability: float = 0.5
    """How often."""
    num_holes: int = 1
    """How many squares; they may overlap and reach beyond the picture."""
    size_to_image_ratio: float = 0.25
    """Side of a square, as a share of the picture's shorter side."""
    fill: float = 128.0
    """Its grey, 0 to 255."""

    def __post_init__(self) -> None:
        check_fields(self, "0 to 1", "probability", "size_to_image_ratio")
        check_fields(self, "1 or more", "num_holes")
        check(0 <= self.fill <= 255, "fill", self.fill, "0 to 255")


@dataclass(frozen=True, kw_only=True)
class GridMask:
    """Make the squares of a grid black, that are laid over the picture at a random angle (arXiv:2001.04086)."""

    probability: float = 0.5
    """How often."""
    ratio: float = 0.6
    """Share of the grid's period that is left between two squares."""
    rotate: float = 10.0
    """Largest angle of the grid, either way, in degrees."""
    min_period: float = 0.3
    """Smallest period of the grid, as a share of the picture's shorter side."""
    max_period: float = 0.5
    """Largest period of the grid, as a share of the picture's shorter side."""

    def __post_init__(self) -> None:
        check_fields(self, "0 to 1", "probability", "ratio")
        check_fields(self, "0 or more", "rotate")
        check(0 < self.min_period <= self.max_period, "min_period", self.min_period, "above 0, at most max_period")


ColorAugmentation = (
    RandomDistortColor
    | RandomRgbToGray
    | RandomPixelValueScale
    | AdjustGamma
    | RandomJpegQuality
    | RandomPatchGaussian
    | RandomBlackPatches
    | RandomCutout
    | GridMask
)
