"""Gates: the conditions for blessing a model."""

import datetime
from dataclasses import dataclass
from typing import Literal

from detloom.schemas.contracts.metric_names import ALLOWED, KEYPOINT, KEYPOINT_METRIC_NAMES, MASK, METRIC_NAMES
from detloom.schemas.errors import FieldError, NotNegativeInt, Positive, Ranged, check, check_fields, check_not_empty
from detloom.schemas.reading.typed_dict import nearest_hint

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
    """Decision if the baseline cannot be compared, for example because it has no class in common: `by_floors` leaves it
    to the other gates and refuses without a floor, `bless` leaves it to the other gates, `refuse` refuses."""

    def __post_init__(self) -> None:
        check(-1 <= self.min_ap_change <= 1, "min_ap_change", self.min_ap_change, "-1 to 1 (not percent)")
        check_fields(self, "between 0 and 1", "confidence")
        check(self.num_resamples >= 100, "num_resamples", self.num_resamples, "100 or more")


@dataclass(frozen=True, kw_only=True)
class LatencyGate(Ranged):
    """Latency limits of the exported model per image, measured on the evaluating machine after a warm-up."""

    max_median_ms: Positive | None = None
    """Largest median in milliseconds; null sets no limit."""
    max_p95_ms: Positive | None = None
    """Largest 95th percentile in milliseconds; null sets no limit."""
    max_ratio: Positive | None = None
    """Largest median relative to the median of the baseline in the same run; null sets no limit."""
    num_images: NotNegativeInt = 50
    """Number of timed images per model; the models take turns. 0 measures nothing."""

    def __post_init__(self) -> None:
        super().__post_init__()
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
    """Last day of validity, such as 2026-12-31, so that scheduled runs do not use it forever."""

    def __post_init__(self) -> None:
        check(len(self.reason.strip()) >= _MIN_REASON, "reason", repr(self.reason), "a sentence with the reason")
        check_not_empty(self, "by")
        try:
            datetime.date.fromisoformat(self.until)
        except ValueError:
            raise FieldError("until", f"got {self.until!r}, allowed: a day such as 2026-12-31.") from None


@dataclass(frozen=True, kw_only=True)
class Gates(Ranged):
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
    max_model_mib: Positive | None = None
    """Largest size of the SavedModel in MiB (1,048,576 bytes), without `model.onnx`; null sets no limit."""
    max_int8_ap_drop: Positive | None = None
    """Largest difference between the AP of the exported model and the AP of the int8 TFLite model; null sets no
    limit."""
    max_onnx_ap_difference: Positive = 0.001
    """Largest difference between the AP of the SavedModel and the AP of `model.onnx`, in either direction; also for
    masks and keypoints."""
    override: Override | None = None
    """Bless a model although gates fail; a model that does not run correctly is never blessed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        is_reason = not self.no_floor_reason or len(self.no_floor_reason.strip()) >= _MIN_REASON
        check(is_reason, "no_floor_reason", repr(self.no_floor_reason), "a sentence with the reason")
        is_used = not (self.no_floor_reason and self.floors)
        check(is_used, "no_floor_reason", "a reason beside floors", "one of floors and no_floor_reason", "floors")
