"""Random changes that make one training picture of several of the same batch.

They come last, after all changes to single pictures; `train.last_steps_without_mixing` ends them before the training.
"""

from dataclasses import dataclass

from detloom.schemas.checks import check, check_fields


@dataclass(frozen=True, kw_only=True)
class Mosaic:
    """Four pictures in the quarters around a random point, each cut and shrunk to fill its own (arXiv:2004.10934)."""

    probability: float = 1.0
    """How often."""
    min_center: float = 0.25
    """Smallest distance of the point from the upper and left edge, as a share of the side."""
    max_center: float = 0.75
    """Largest distance of the point from the upper and left edge, as a share of the side."""
    min_scale: float = 0.5
    """Smallest factor by which pictures are shrunk; less than fills a quarter is not used."""
    max_scale: float = 1.0
    """Largest factor."""
    overlap_thresh: float = 0.3
    """A box is kept if at least this share of it is seen."""

    def __post_init__(self) -> None:
        check_fields(self, "0 to 1", "probability", "overlap_thresh")
        check(0 < self.min_center <= self.max_center, "min_center", self.min_center, "above 0, at most max_center")
        check(self.max_center < 1, "max_center", self.max_center, "less than 1")
        check(0 < self.min_scale <= self.max_scale, "min_scale", self.min_scale, "above 0, at most max_scale")


@dataclass(frozen=True, kw_only=True)
class MixUp:
    """The weighted mean of two pictures with the boxes of both (arXiv:1902.04103, 3.1).

    The share of the one is drawn from a beta distribution; a box counts in the loss by the share of its picture.
    """

    probability: float = 1.0
    """How often."""
    alpha: float = 1.5
    """Both parameters of the beta distribution: the larger, the more equal are the shares."""

    def __post_init__(self) -> None:
        check_fields(self, "0 to 1", "probability")
        check_fields(self, "above 0", "alpha")


Mixing = Mosaic | MixUp
