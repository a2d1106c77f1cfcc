"""Parts of the evaluation split that get numbers of their own."""

import itertools
import math
from dataclasses import dataclass
from typing import Literal

from detloom.schemas.checks import check, check_fields

ImageProperty = Literal["num_boxes", "short_side_px", "aspect_ratio"]
ObjectProperty = Literal["side_px", "aspect_ratio", "relative_area", "border_distance"]


@dataclass(frozen=True, kw_only=True)
class ImageSlices:
    """Images told apart by a feature of their example or by a property of theirs; one of the two."""

    feature: str = ""
    """Key of the tf.Example, such as `image/camera`; each of its values makes a slice, named `image/camera=north`."""
    by: ImageProperty | None = None
    """Or: the number of labelled boxes, the shorter side in pixels, or width divided by height."""
    edges: tuple[float, ...] = ()
    """Numbers at which a new slice begins; needed with `by`, allowed for a feature of numbers."""

    def __post_init__(self) -> None:
        got = "both" if self.feature else "neither"
        check(bool(self.feature) != (self.by is not None), "feature", got, "it or by", "by")
        _check_edges(self.edges, is_needed=self.by is not None)

    @property
    def subject(self) -> str:
        """What stands before the `=` in the names of the slices."""
        return self.feature or str(self.by)


@dataclass(frozen=True, kw_only=True)
class ObjectSlices:
    """Labelled objects told apart by a property of their box; measured by how many of them are found."""

    by: ObjectProperty
    """Square root of the area in pixels, width divided by height, share of the image's area, or the least distance from
    the image's border as a share of that side."""
    edges: tuple[float, ...]
    """Numbers at which a new slice begins."""

    def __post_init__(self) -> None:
        _check_edges(self.edges, is_needed=True)


@dataclass(frozen=True, kw_only=True)
class SizeBin:
    """A size of objects beside the small, medium and large ones."""

    name: str
    """How it is called in tables."""
    min_side_px: float = 0.0
    """Least square root of the area, in pixels of the original image."""
    max_side_px: float = 1e5
    """Greatest; both ends belong to it."""

    def __post_init__(self) -> None:
        check(bool(self.name), "name", "nothing", "a name")
        check_fields(self, "0 or more", "min_side_px")
        is_range = self.min_side_px < self.max_side_px
        check(is_range, "max_side_px", self.max_side_px, f"above min_side_px ({self.min_side_px:g})", "min_side_px")


def _check_edges(edges: tuple[float, ...], *, is_needed: bool) -> None:
    check(bool(edges) or not is_needed, "edges", "none", "one number or more")
    is_rising = all(low < high for low, high in itertools.pairwise(edges)) and all(map(math.isfinite, edges))
    check(is_rising, "edges", list(edges), "rising finite numbers")
