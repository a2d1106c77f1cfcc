"""Random changes of colors and of small parts of an image; boxes do not change.

Names and defaults are those of the Object Detection API's preprocessor, if it has the augmentation. Colors are 0 to
255.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from detloom.schemas.errors import NotNegative, Ranged, Share, check, check_fields
from detloom.schemas.model.network import MAX_IMAGE_SIDE


@dataclass(frozen=True, kw_only=True)
class RandomDistortColor:
    """Change brightness, saturation, hue and contrast by random amounts, with the ranges of SSD."""

    color_ordering: Literal[0, 1] = 0
    """Order of the changes. 0: brightness, saturation, hue, contrast. 1: brightness, contrast, saturation, hue."""


@dataclass(frozen=True, kw_only=True)
class RandomRgbToGray(Ranged):
    """Convert the image to gray; it keeps three channels."""

    probability: Share = 0.1
    """Probability of the conversion."""


@dataclass(frozen=True, kw_only=True)
class RandomPixelValueScale:
    """Multiply each channel value of each pixel by an independent random factor."""

    minval: float = 0.9
    """Smallest factor."""
    maxval: float = 1.1
    """Largest factor."""

    def __post_init__(self) -> None:
        check(0 <= self.minval <= self.maxval, "minval", self.minval, "0 to maxval")


@dataclass(frozen=True, kw_only=True)
class AdjustGamma(Ranged):
    """Gamma correction of the colors, as shares of full white. It is not random."""

    gamma: NotNegative = 1.0
    """Exponent; values above 1 darken the image."""
    gain: NotNegative = 1.0
    """Factor of the result."""


@dataclass(frozen=True, kw_only=True)
class RandomJpegQuality:
    """Encode the image as a JPEG of random quality and decode it again, before it is resized."""

    random_coef: float = 0.0
    """Probability of leaving the image unchanged."""
    min_jpeg_quality: int = 0
    """Smallest quality."""
    max_jpeg_quality: int = 100
    """Upper bound (exclusive) of the quality."""

    def __post_init__(self) -> None:
        check_fields(self, "0 to 1", "random_coef")
        low, high = self.min_jpeg_quality, self.max_jpeg_quality
        check(0 <= low < high, "min_jpeg_quality", low, "0 or more, less than max_jpeg_quality")
        check(high <= 101, "max_jpeg_quality", high, "at most 101")


@dataclass(frozen=True, kw_only=True)
class RandomPatchGaussian(Ranged):
    """Add Gaussian noise to a square patch, before the image is resized (arXiv:1906.02611)."""

    random_coef: Share = 0.0
    """Probability of leaving the image unchanged."""
    min_patch_size: int = 1
    """Smallest side of the patch in pixels."""
    max_patch_size: Annotated[int, f"0 to {MAX_IMAGE_SIDE}"] = 250
    """Upper bound (exclusive) of the side in pixels."""
    min_gaussian_stddev: float = 0.0
    """Smallest standard deviation of the noise, as a share of full white."""
    max_gaussian_stddev: float = 1.0
    """Largest standard deviation of the noise, as a share of full white."""

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes, deviations = (
            (self.min_patch_size, self.max_patch_size),
            (self.min_gaussian_stddev, self.max_gaussian_stddev),
        )
        check(1 <= sizes[0] < sizes[1], "min_patch_size", sizes[0], "1 or more, less than max_patch_size")
        check(0 <= deviations[0] <= deviations[1], "min_gaussian_stddev", deviations[0], "0 to max_gaussian_stddev")


@dataclass(frozen=True, kw_only=True)
class RandomBlackPatches(Ranged):
    """Paint small black squares."""

    max_black_patches: Annotated[int, "0 to 1000"] = 10
    """Largest number of squares."""
    probability: Share = 0.5
    """Probability of each square."""
    size_to_image_ratio: Share = 0.1
    """Side of a square, as a share of the image's shorter side."""


@dataclass(frozen=True, kw_only=True)
class RandomCutout(Ranged):
    """Paint gray squares at random positions (arXiv:1708.04552)."""

    probability: Share = 0.5
    """Probability of the augmentation."""
    num_holes: Annotated[int, "1 to 1000"] = 1
    """Number of squares; they may overlap and extend beyond the image."""
    size_to_image_ratio: Share = 0.25
    """Side of a square, as a share of the image's shorter side."""
    fill: Annotated[float, "0 to 255"] = 128.0
    """Gray value, 0 to 255."""


@dataclass(frozen=True, kw_only=True)
class GridMask(Ranged):
    """Paint the squares of a rotated grid black (arXiv:2001.04086)."""

    probability: Share = 0.5
    """Probability of the augmentation."""
    ratio: Share = 0.6
    """Share of the grid's period between two squares, which stays visible."""
    rotate: NotNegative = 10.0
    """Largest rotation of the grid in either direction, in degrees."""
    min_period: float = 0.3
    """Smallest period of the grid, as a share of the image's shorter side."""
    max_period: float = 0.5
    """Largest period of the grid, as a share of the image's shorter side."""

    def __post_init__(self) -> None:
        super().__post_init__()
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
