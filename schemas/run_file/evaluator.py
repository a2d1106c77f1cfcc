"""Evaluation of the exported model: slices of images and objects, and what the report shows."""

import itertools
import math
from dataclasses import dataclass
from typing import Annotated, Literal

from detloom.schemas.contracts.runtime_names import ModelRuntime
from detloom.schemas.errors import NotNegativeInt, PositiveInt, Ranged, Share, check, check_fields, check_not_empty

ImageProperty = Literal["num_boxes", "short_side_px", "aspect_ratio"]
ObjectProperty = Literal["side_px", "aspect_ratio", "relative_area", "border_distance"]


@dataclass(frozen=True, kw_only=True)
class ImageSlices:
    """Groups of images, either by a feature of their example or by a property of the image."""

    feature: str = ""
    """Key of the tf.Example, such as `image/camera`; each value forms a slice, such as `image/camera=north`."""
    by: ImageProperty | None = None
    """Property to use instead of `feature`: the number of labelled boxes, the shorter side in pixels, or the aspect
    ratio (width / height)."""
    edges: tuple[float, ...] = ()
    """Lower limits of the slices after the first; required with `by`, optional for a numeric feature."""

    def __post_init__(self) -> None:
        got = "both" if self.feature else "neither"
        check(bool(self.feature) != (self.by is not None), "feature", got, "one of feature and by", "by")
        _check_edges(self.edges, is_needed=self.by is not None)

    @property
    def subject(self) -> str:
        """Return the part of the slice names before the `=`."""
        return self.feature or str(self.by)


@dataclass(frozen=True, kw_only=True)
class ObjectSlices:
    """Groups of labelled objects by a property of their box, for which recall is measured."""

    by: ObjectProperty
    """Property: the square root of the area in pixels, the aspect ratio (width / height), the area relative to the
    image, or the distance from the nearest image border relative to that side."""
    edges: tuple[float, ...]
    """Lower limits of the slices after the first."""

    def __post_init__(self) -> None:
        _check_edges(self.edges, is_needed=True)


@dataclass(frozen=True, kw_only=True)
class SizeBin:
    """Range of object sizes, in addition to small, medium and large."""

    name: str
    """Name in tables."""
    min_side_px: float = 0.0
    """Smallest square root of the area, inclusive, in pixels of the original image."""
    max_side_px: float = 1e5
    """Largest square root of the area, inclusive, in pixels of the original image."""

    def __post_init__(self) -> None:
        check_not_empty(self, "name")
        check_fields(self, "0 or more", "min_side_px")
        is_range = self.min_side_px < self.max_side_px
        check(is_range, "max_side_px", self.max_side_px, f"above min_side_px ({self.min_side_px:g})", "min_side_px")


def _check_edges(edges: tuple[float, ...], *, is_needed: bool) -> None:
    check(bool(edges) or not is_needed, "edges", "none", "one number or more")
    is_rising = all(low < high for low, high in itertools.pairwise(edges))
    is_finite = all(map(math.isfinite, edges))
    check(is_rising and is_finite, "edges", list(edges), "rising finite numbers")


@dataclass(frozen=True, kw_only=True)
class EvaluatorSettings(Ranged):
    """Evaluation of the exported model."""

    runtime: ModelRuntime = "tensorflow"
    """What runs the model for all metrics, slices, latencies and gates, and the baseline if it has the file: TensorFlow
    runs the SavedModel; `onnxruntime` and `openvino` run `model.onnx` (`export.onnx`). The other of both is compared
    with it (`gates.max_onnx_ap_difference`)."""
    batch_size: Annotated[int, "1 to 1000"] = 8
    """Number of images per batch."""
    num_images: NotNegativeInt = 6
    """Number of images with boxes on the report page for each kind: mistakes, missed objects, better, worse, the first
    ones."""
    image_slices: tuple[ImageSlices, ...] = ()
    """Groups of images that are measured separately, such as those of one camera."""
    object_slices: tuple[ObjectSlices, ...] = ()
    """Groups of objects whose recall is measured separately, such as those at the border."""
    sizes: tuple[SizeBin, ...] = ()
    """Ranges of object sizes in addition to small, medium and large."""
    wanted_precision: Share = 0.9
    """Precision for which the report lists the lowest sufficient score of each class."""
    min_slice_count: PositiveInt = 20
    """Number of images, or objects, below which a slice is marked as small."""
