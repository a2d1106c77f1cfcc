"""Settings of the evaluation of the exported model: slices, the evaluator, and the gates for blessing a model."""

import datetime
import itertools
import math
from dataclasses import dataclass
from typing import Literal

from detloom.schemas.contracts.metric_names import ALLOWED, KEYPOINT, KEYPOINT_METRIC_NAMES, MASK, METRIC_NAMES
from detloom.schemas.errors import check, check_fields
from detloom.schemas.reading.typed_dict import nearest_hint

# --- slices -----------------------------------------------------------------------------------------------------------


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
        check(bool(self.name), "name", "nothing", "a name")
        check_fields(self, "0 or more", "min_side_px")
        is_range = self.min_side_px < self.max_side_px
        check(is_range, "max_side_px", self.max_side_px, f"above min_side_px ({self.min_side_px:g})", "min_side_px")


def _check_edges(edges: tuple[float, ...], *, is_needed: bool) -> None:
    check(bool(edges) or not is_needed, "edges", "none", "one number or more")
    is_rising = all(low < high for low, high in itertools.pairwise(edges)) and all(map(math.isfinite, edges))
    check(is_rising, "edges", list(edges), "rising finite numbers")


# --- evaluator --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """Evaluation of the exported model."""

    batch_size: int = 8
    """Number of images per batch."""
    num_images: int = 6
    """Number of images with boxes on the report page for each kind: mistakes, missed objects, better, worse, the first
    ones."""
    image_slices: tuple[ImageSlices, ...] = ()
    """Groups of images that are measured separately, such as those of one camera."""
    object_slices: tuple[ObjectSlices, ...] = ()
    """Groups of objects whose recall is measured separately, such as those at the border."""
    sizes: tuple[SizeBin, ...] = ()
    """Ranges of object sizes in addition to small, medium and large."""
    wanted_precision: float = 0.9
    """Precision for which the report lists the lowest sufficient score of each class."""
    min_slice_count: int = 20
    """Number of images, or objects, below which a slice is marked as small."""

    def __post_init__(self) -> None:
        check_fields(self, "1 to 1000", "batch_size")
        check_fields(self, "1 or more", "min_slice_count")
        check_fields(self, "0 or more", "num_images")
        check_fields(self, "0 to 1", "wanted_precision")


# --- gates ------------------------------------------------------------------------------------------------------------


_MIN_REASON = 12  # characters: a single word is not a reason


def check_gate_metric(metric: str) -> None:
    """Raise FieldError unless the metric is a COCO metric, or that of a class such as `AP50/cat`."""
    name, slash, class_name = metric.partition("/")
    known = [*METRIC_NAMES, *(f"{MASK}{each}" for each in METRIC_NAMES)]
    known += [f"{KEYPOINT}{each}" for each in KEYPOINT_METRIC_NAMES]
    allowed = f"{ALLOWED}, or that of a class such as AP50/cat or mask_AP/cat.{nearest_hint(name, known)}"
    is_known = name in known and bool(class_name) == bool(slash) and not (slash and name.startswith(KEYPOINT))
    check(is_known, "metric", repr(metric), allowed.rstrip("."))


@dataclass(frozen=True, kw_only=True)
class MetricFloor:
    """Smallest value of a metric on the test split."""

    metric: str
    """A COCO metric such as AP or AP50, or that of a class such as `AP50/cat`; of masks or keypoints with `mask_` or
    `keypoint_`, such as `mask_AP`."""
    min: float
    """Smallest value, 0 to 1 (not percent)."""
    slice: str = ""
    """Slice of images, such as `image/camera=north`; empty for all images."""

    def __post_init__(self) -> None:
        check_gate_metric(self.metric)
        check(0 <= self.min <= 1, "min", self.min, "0 to 1 (not percent)")


@dataclass(frozen=True, kw_only=True)
class MetricChange:
    """Smallest change of a metric compared with the baseline."""

    metric: str
    """A COCO metric such as AP or AP50, or that of a class such as `AP50/cat`; of masks or keypoints with `mask_` or
    `keypoint_`, such as `mask_AP`."""
    min_change: float
    """Smallest change, -1 to 1 (not percent); -0.02 allows a drop of 0.02."""
    slice: str = ""
    """Slice of images, such as `image/camera=north`; empty for all images."""

    def __post_init__(self) -> None:
        check_gate_metric(self.metric)
        check(-1 <= self.min_change <= 1, "min_change", self.min_change, "-1 to 1 (not percent)")


@dataclass(frozen=True, kw_only=True)
class BaselineGate:
    """Comparison of AP with the model that serves now, on the same images."""

    min_ap_change: float = 0.0
    """Smallest difference between the AP of the model and the AP of the baseline."""
    inside_noise: Literal["by_value", "bless", "refuse"] = "by_value"
    """Decision if the confidence interval of the difference contains `min_ap_change`, ends included, so that the images
    do not show whether the condition holds: decide by the measured difference, always bless, or always refuse."""
    confidence: float = 0.95
    """Confidence level of the interval."""
    num_resamples: int = 1000
    """Number of bootstrap resamples of the images for the interval."""
    when_missing: Literal["bless", "refuse"] = "bless"
    """Decision for a first model without a baseline: leave it to the other gates, or refuse."""
    when_incompatible: Literal["by_floors", "bless", "refuse"] = "by_floors"
    """Decision if the baseline cannot be compared, for example because its classes differ: `by_floors` leaves it to the
    other gates and refuses without a floor, `bless` leaves it to the other gates, `refuse` refuses."""

    def __post_init__(self) -> None:
        check(-1 <= self.min_ap_change <= 1, "min_ap_change", self.min_ap_change, "-1 to 1 (not percent)")
        check_fields(self, "between 0 and 1", "confidence")
        check(self.num_resamples >= 100, "num_resamples", self.num_resamples, "100 or more")


@dataclass(frozen=True, kw_only=True)
class LatencyGate:
    """Latency limits of the exported model per image, measured on the evaluating machine after a warm-up."""

    max_median_ms: float | None = None
    """Largest median in milliseconds; null sets no limit."""
    max_p95_ms: float | None = None
    """Largest 95th percentile in milliseconds; null sets no limit."""
    max_ratio: float | None = None
    """Largest median relative to the median of the baseline in the same run; null sets no limit."""
    num_images: int = 50
    """Number of timed images per model; the models take turns. 0 measures nothing."""

    def __post_init__(self) -> None:
        check_fields(self, "above 0", *(name for name in _LATENCY_LIMITS if getattr(self, name) is not None))
        check_fields(self, "0 or more", "num_images")
        is_asked = any(getattr(self, name) is not None for name in _LATENCY_LIMITS)
        check(self.num_images > 0 or not is_asked, "num_images", 0, "1 or more with a latency limit")


_LATENCY_LIMITS = ("max_median_ms", "max_p95_ms", "max_ratio")


@dataclass(frozen=True, kw_only=True)
class Override:
    """Bless a model although gates fail. The decision, its page and the log show the reason, the person and the
    date."""

    reason: str
    """Reason, in a sentence."""
    by: str
    """Person who is responsible."""
    until: str
    """Last day of validity, such as '2026-12-31' with the quotes, so that scheduled runs do not use it forever."""

    def __post_init__(self) -> None:
        check(len(self.reason.strip()) >= _MIN_REASON, "reason", repr(self.reason), "a sentence with the reason")
        check(bool(self.by.strip()), "by", "nothing", "a name")
        try:
            datetime.date.fromisoformat(self.until)
        except ValueError:
            check(False, "until", repr(self.until), "a day such as '2026-12-31'")


@dataclass(frozen=True, kw_only=True)
class Gates:
    """Conditions for blessing a model. All of them must hold."""

    floors: tuple[MetricFloor, ...] = ()
    """Smallest values of metrics. Without any above 0, a model must be significantly better than the best detector that
    ignores the image."""
    no_floor_reason: str = ""
    """Reason, in a sentence, to bless a model that has no floors without this comparison. The report shows it in
    red."""
    changes: tuple[MetricChange, ...] = ()
    """Smallest changes of metrics compared with the baseline, in addition to that of AP."""
    baseline: BaselineGate = BaselineGate()
    """Comparison of AP with the baseline."""
    latency: LatencyGate = LatencyGate()
    """Latency limits of the exported model."""
    max_model_mib: float | None = None
    """Largest size of the exported model in MiB (1,048,576 bytes); null sets no limit."""
    max_int8_ap_drop: float | None = None
    """Largest difference between the AP of the exported model and the AP of the int8 TFLite model; null sets no
    limit."""
    override: Override | None = None
    """Bless a model although gates fail; a model that does not run correctly is never blessed."""

    def __post_init__(self) -> None:
        is_reason = not self.no_floor_reason or len(self.no_floor_reason.strip()) >= _MIN_REASON
        check(is_reason, "no_floor_reason", repr(self.no_floor_reason), "a sentence with the reason")
        is_used = not (self.no_floor_reason and self.floors)
        check(is_used, "no_floor_reason", "a reason beside floors", "one of floors and no_floor_reason", "floors")
        for name in ("max_model_mib", "max_int8_ap_drop"):
            if getattr(self, name) is not None:
                check_fields(self, "above 0", name)
