"""When a model is blessed: what is asked of it alone, and against the one that serves now."""

import datetime
from dataclasses import dataclass
from typing import Literal

from detloom.schemas.checks import check, check_fields
from detloom.schemas.metric_names import METRIC_NAMES
from detloom.schemas.typed_dict import nearest_hint

_MIN_REASON = 12  # characters: a word is no reason


def check_gate_metric(metric: str) -> None:
    """Raise FieldError unless it is a COCO number, or one of a class as in `AP50/cat`."""
    name, slash, class_name = metric.partition("/")
    allowed = f"{', '.join(METRIC_NAMES)}, or one of a class as in AP50/cat.{nearest_hint(name, METRIC_NAMES)}"
    check(name in METRIC_NAMES and bool(class_name) == bool(slash), "metric", repr(metric), allowed.rstrip("."))


@dataclass(frozen=True, kw_only=True)
class MetricFloor:
    """Bless only if the metric on the test split is at least `min`."""

    metric: str
    """One of the COCO numbers, such as AP or AP50; of one class as `AP50/cat`."""
    min: float
    """Least value, 0 to 1 (not percent)."""
    slice: str = ""
    """Of the images of a slice alone, as in `image/camera=north`; empty for all."""

    def __post_init__(self) -> None:
        check_gate_metric(self.metric)
        check(0 <= self.min <= 1, "min", self.min, "0 to 1 (not percent)")


@dataclass(frozen=True, kw_only=True)
class MetricChange:
    """Bless only if the metric is at least the baseline's plus `min_change`."""

    metric: str
    """One of the COCO numbers, such as AP or AP50; of one class as `AP50/cat`."""
    min_change: float
    """Least change, -1 to 1 (not percent); -0.02 lets it fall by 0.02."""
    slice: str = ""
    """Of the images of a slice alone, as in `image/camera=north`; empty for all."""

    def __post_init__(self) -> None:
        check_gate_metric(self.metric)
        check(-1 <= self.min_change <= 1, "min_change", self.min_change, "-1 to 1 (not percent)")


@dataclass(frozen=True, kw_only=True)
class BaselineGate:
    """The comparison of AP with the model that was blessed last, on the same images."""

    min_ap_change: float = 0.0
    """AP is at least the baseline's plus this."""
    inside_noise: Literal["by_value", "bless", "refuse"] = "by_value"
    """What decides when the confidence interval of the difference holds `min_ap_change`, its ends included, so that the
    images cannot tell which side it is on: the measured difference, or always bless, or always refuse."""
    confidence: float = 0.95
    """Share of cases in which the interval holds the true difference."""
    num_resamples: int = 1000
    """How often the images are drawn again for the interval."""
    when_missing: Literal["bless", "refuse"] = "bless"
    """Whether a first model, with nothing to compare to, may be blessed by the other gates."""
    when_incompatible: Literal["by_floors", "bless", "refuse"] = "by_floors"
    """What a baseline that cannot be compared means, such as one of other classes: the other gates decide, and refuse
    where no floor is set; or they decide in any case; or refuse."""

    def __post_init__(self) -> None:
        check(-1 <= self.min_ap_change <= 1, "min_ap_change", self.min_ap_change, "-1 to 1 (not percent)")
        check_fields(self, "between 0 and 1", "confidence")
        check(self.num_resamples >= 100, "num_resamples", self.num_resamples, "100 or more")


@dataclass(frozen=True, kw_only=True)
class LatencyGate:
    """How long the exported model may take for one image; measured on the machine that evaluates, after warming up."""

    max_median_ms: float | None = None
    """Longest median in milliseconds; null asks nothing."""
    max_p95_ms: float | None = None
    """Longest 95th percentile in milliseconds; null asks nothing."""
    max_ratio: float | None = None
    """Longest median, as a multiple of the baseline's in the same run; null asks nothing."""
    num_images: int = 50
    """Timed images of each model, in turn; 0 measures nothing."""

    def __post_init__(self) -> None:
        check_fields(self, "above 0", *(name for name in _LATENCY_LIMITS if getattr(self, name) is not None))
        check_fields(self, "0 or more", "num_images")
        is_asked = any(getattr(self, name) is not None for name in _LATENCY_LIMITS)
        check(self.num_images > 0 or not is_asked, "num_images", 0, "1 or more where a latency is asked for")


_LATENCY_LIMITS = ("max_median_ms", "max_p95_ms", "max_ratio")


@dataclass(frozen=True, kw_only=True)
class Override:
    """Bless in spite of gates that fail. Who, why and until when stand in the decision, on its page and in the log."""

    reason: str
    """Why, in a sentence."""
    by: str
    """Who answers for it."""
    until: str
    """Last day on which it holds, as '2026-12-31' with the quotes: schedules outlive their reasons."""

    def __post_init__(self) -> None:
        check(len(self.reason.strip()) >= _MIN_REASON, "reason", repr(self.reason), "a sentence that says why")
        check(bool(self.by.strip()), "by", "nothing", "a name")
        try:
            datetime.date.fromisoformat(self.until)
        except ValueError:
            check(False, "until", repr(self.until), "a day such as '2026-12-31'")


@dataclass(frozen=True, kw_only=True)
class Gates:
    """When a model is blessed: all of them must hold."""

    floors: tuple[MetricFloor, ...] = ()
    """Least values of metrics."""
    changes: tuple[MetricChange, ...] = ()
    """Least changes of metrics against the baseline, beside that of AP."""
    baseline: BaselineGate = BaselineGate()
    """The comparison of AP with the baseline."""
    latency: LatencyGate = LatencyGate()
    """How long the exported model may take."""
    max_model_mib: float | None = None
    """Greatest size of the exported model in MiB (1,048,576 bytes); null asks nothing."""
    max_int8_ap_drop: float | None = None
    """How much lower AP of the int8 TFLite model may be than that of the exported model; null asks nothing."""
    override: Override | None = None
    """Bless in spite of gates that fail; a model that cannot be run as it should is never blessed."""

    def __post_init__(self) -> None:
        for name in ("max_model_mib", "max_int8_ap_drop"):
            if getattr(self, name) is not None:
                check_fields(self, "above 0", name)
