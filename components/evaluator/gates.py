"""The rules of the gates: compare the measurements of a model with the limits of the run file; no I/O."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from detloom.components.evaluator.analysis.bootstrap import Interval
from detloom.schemas.contracts.metric_names import KEYPOINT, MASK
from detloom.schemas.run_file.gates import Gates, MetricChange, MetricFloor

_ROUNDING = 1e-9  # metrics are means of quotients: a floor of 1.0 must not fail by rounding
_MIB = 2**20
CONTRACT = "contract of the model"
FORM_METRICS = ("AP", f"{MASK}AP", f"{KEYPOINT}AP")  # in which both forms of a model must agree
_BASELINE = "AP against the baseline, change at least"
FORM_DIFFERENCE = "difference in AP between the SavedModel and model.onnx"
CONSTANT = "AP50 against a detector that ignores the image, lower end of the interval above"

Verdict = Literal["passed", "failed", "skipped", "waived"]  # waived: the run file gives a reason


class Measured(Protocol):
    """The measurements of a model that gates use."""

    def find_value(self, metric: str, slice_name: str) -> tuple[float | None, str]:
        """Return the value and an empty string, or None and the reason, as the end of a sentence."""


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Latency of one image in milliseconds."""

    median_ms: float
    p95_ms: float
    num_images: int


@dataclass(frozen=True, kw_only=True)
class ModelCosts:
    """Latency and size of a model; None means not measured."""

    latency: Latency | None = None
    model_bytes: int | None = None


NO_COSTS = ModelCosts()


@dataclass(frozen=True, kw_only=True)
class OtherForm:
    """Measurements of the form of the candidate that is served too: `model.onnx`, or the SavedModel.

    Attributes:
        name: its name in `schemas/contracts/runtime_names.py`.
        aps: AP, mask_AP and keypoint_AP, as far as they were measured.
    """

    name: str
    aps: Mapping[str, float]
    latency: Latency | None = None


@dataclass(frozen=True, kw_only=True)
class GateEvidence:
    """The inputs of a decision; None means not measured.

    Attributes:
        baseline: measurements on the same images; None without a baseline, or if it cannot be compared.
        compared: measurements of the candidate that the baseline is compared with; None uses `candidate`.
        scope: the classes of `compared`, as the end of a sentence; empty for all.
        baseline_problem: why an existing baseline was not compared, as the end of a sentence.
        is_blessed_already: there is no baseline because the candidate is the latest blessed model itself.
        ap_change: AP of the candidate minus AP of the baseline, with its interval.
        gain_over_constant: AP50 of the candidate minus that of the best detector that ignores the image, with its
            interval; None if `needs_constant` is false.
        int8_ap: AP of the int8 TFLite model, if one exists.
        other_form: the candidate's other form, if it can be run.
        contract_problem: how the model violates the serving contract, as a sentence.
    """

    candidate: Measured
    baseline: Measured | None = None
    compared: Measured | None = None
    scope: str = ""
    baseline_problem: str | None = None
    is_blessed_already: bool = False
    ap_change: Interval | None = None
    gain_over_constant: Interval | None = None
    costs: ModelCosts = NO_COSTS
    baseline_costs: ModelCosts = NO_COSTS
    int8_ap: float | None = None
    other_form: OtherForm | None = None
    contract_problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class Gate:
    """One gate and its verdict.

    Attributes:
        value: None if it could not be measured.
        sentence: the result with numbers, without a full stop.
        is_change: value and threshold are differences to the baseline.
    """

    name: str
    value: float | None
    threshold: float | None
    verdict: Verdict
    sentence: str
    is_change: bool = False


def check_gates(evidence: GateEvidence, gates: Gates) -> Iterator[Gate]:
    """Check all gates; one whose value could not be measured fails."""
    problem = evidence.contract_problem
    yield _gate(CONTRACT, None, None, problem is None, problem or "the model fulfils the serving contract")
    for floor in gates.floors:
        yield _check_floor(evidence.candidate, floor)
    yield _check_presence(evidence, gates) if evidence.baseline is None else _check_ap_change(evidence, gates)
    if not _has_floor(gates) and not evidence.is_blessed_already:
        yield _check_constant(evidence.gain_over_constant, gates)
    for change in gates.changes:
        yield _check_change(evidence, change)
    yield from _check_latency(evidence, gates)
    if gates.max_model_mib is not None:
        num_bytes = evidence.costs.model_bytes
        value = None if num_bytes is None else num_bytes / _MIB
        yield _at_most("model size in MiB", value, gates.max_model_mib, "the size of the model")
    if gates.max_int8_ap_drop is not None:
        yield _check_int8(evidence, gates.max_int8_ap_drop)
    if evidence.other_form is not None:
        yield _check_other_form(evidence.candidate, evidence.other_form, gates.max_onnx_ap_difference)


def _check_floor(candidate: Measured, floor: MetricFloor) -> Gate:
    name = _name(floor.metric, floor.slice)
    value, why_not = candidate.find_value(floor.metric, floor.slice)
    if value is None:
        sentence = f"{name} could not be measured ({why_not}), required: at least {floor.min:.3f}"
    else:
        sentence = f"{name} {value:.3f} is {'at least' if _is_at_least(value, floor.min) else 'below'} {floor.min:.3f}"
    return _gate(f"{name}, at least", value, floor.min, value is not None and _is_at_least(value, floor.min), sentence)


def _check_presence(evidence: GateEvidence, gates: Gates) -> Gate:
    """Check the baseline gate without a baseline that can be compared."""
    gate = gates.baseline
    value, why_not = evidence.candidate.find_value("AP", "")
    problem = evidence.baseline_problem
    verdict: Verdict = "skipped"
    if problem is None and evidence.is_blessed_already:  # `when_missing` was applied when it was blessed
        sentence = "the candidate is the latest blessed model itself, and there is no other model to compare with"
    elif problem is None:
        sentence = "there is no earlier blessed model to compare with"
        if gate.when_missing == "refuse":
            verdict, sentence = "failed", f"{sentence}, and gates.baseline.when_missing is refuse"
    else:
        sentence = f"not compared with a baseline: {problem}"
        if gate.when_incompatible == "refuse":
            verdict, sentence = "failed", f"{sentence}, and gates.baseline.when_incompatible is refuse"
        elif gate.when_incompatible == "by_floors" and not _has_floor(gates):
            verdict = "failed"
            sentence = f"the baseline could not be compared: {problem}; no floor is set, set gates.floors"
    if value is None and verdict == "skipped":
        verdict, sentence = "failed", f"AP could not be measured ({why_not}), and {sentence}"
    return _gate(_BASELINE, None, gate.min_ap_change, verdict, sentence, is_change=True)


def needs_constant(gates: Gates, *, is_blessed_already: bool) -> bool:
    """Return whether a decision needs `GateEvidence.gain_over_constant`."""
    return not (is_blessed_already or _has_floor(gates) or gates.no_floor_reason)


def _has_floor(gates: Gates) -> bool:
    """Return whether a floor is set that a useless model fails: each model reaches 0."""
    return any(floor.min > 0 for floor in gates.floors)


def _check_constant(gain: Interval | None, gates: Gates) -> Gate:
    """Check the built-in floor, for a model without floors."""
    if gates.no_floor_reason:
        reason = gates.no_floor_reason.strip().rstrip(".")
        sentence = f"no floor is set, and the built-in one is switched off ({reason})"
        return _gate(CONSTANT, None, 0.0, "waived", sentence, is_change=True)
    low = None if gain is None or is_blind(gain) else gain.low
    if gain is None or gain.value is None or low is None:
        unknown = "whether the model is better than a detector that ignores the image"
        sentence = f"no floor above 0 is set, and these images do not show {unknown}; set gates.floors"
        return _gate(CONSTANT, None, 0.0, False, sentence, is_change=True)
    assert gain.high is not None
    found = (
        f"AP50 differs by {gain.value:+.3f} ({gates.baseline.confidence:.0%} interval {low:+.3f} to {gain.high:+.3f}) "
        "from that of a detector that ignores the image"
    )
    passed = low > 0
    sentence = found if passed else f"{found}, required: significantly above, or gates.floors"
    return _gate(CONSTANT, low, 0.0, passed, sentence, is_change=True)


def _check_ap_change(evidence: GateEvidence, gates: Gates) -> Gate:
    """Check the change of AP against the baseline, considering its confidence interval."""
    gate, threshold, interval = gates.baseline, gates.baseline.min_ap_change, evidence.ap_change
    change, found = _compare(evidence, "AP", "")
    if change is None:
        return _gate(_BASELINE, None, threshold, False, found, is_change=True)
    if interval is not None and interval.low is not None and interval.high is not None:
        found += f" ({gate.confidence:.0%} interval {interval.low:+.3f} to {interval.high:+.3f})"
        if interval.holds(0):
            found += ", which is not significant"
    passed = _is_at_least(change, threshold)
    # Otherwise, the images show on which side of the threshold the difference is.
    is_unsure = interval is not None and (interval.holds(threshold) or is_blind(interval))
    if gate.inside_noise != "by_value" and is_unsure:
        passed = gate.inside_noise == "bless"
        sentence = f"{found}; gates.baseline.inside_noise is {gate.inside_noise}"
    else:
        sentence = f"{found}, required: at least {threshold:+.3f}"
    return _gate(_BASELINE, change, threshold, passed, sentence, is_change=True)


def _compare(evidence: GateEvidence, metric: str, slice_name: str) -> tuple[float | None, str]:
    """Return the change of a metric against the baseline and a sentence; None and the reason if it is unknown."""
    assert evidence.baseline is not None
    name = _name(metric, slice_name)
    value, why_not = (evidence.compared or evidence.candidate).find_value(metric, slice_name)
    before, why_not_before = evidence.baseline.find_value(metric, slice_name)
    if value is None or before is None:
        return None, f"{name} could not be compared with the baseline{evidence.scope} ({why_not or why_not_before})"
    change = value - before
    return change, f"{name} {value:.3f} differs by {change:+.3f} from the baseline's {before:.3f}{evidence.scope}"


def is_blind(interval: Interval) -> bool:
    """Return True if the interval has zero width because all objects are in one image."""
    return interval.low == interval.high and interval.value != 0


def _check_change(evidence: GateEvidence, required: MetricChange) -> Gate:
    metric = _name(required.metric, required.slice)
    name = f"{metric} against the baseline, change at least"
    if evidence.baseline is None:
        sentence = f"{metric} has no baseline to compare with"
        return _gate(name, None, required.min_change, "skipped", sentence, is_change=True)
    change, found = _compare(evidence, required.metric, required.slice)
    if change is None:
        return _gate(name, None, required.min_change, False, found, is_change=True)
    passed = _is_at_least(change, required.min_change)
    sentence = f"{found}, required: at least {required.min_change:+.3f}"
    return _gate(name, change, required.min_change, passed, sentence, is_change=True)


def _check_latency(evidence: GateEvidence, gates: Gates) -> Iterator[Gate]:
    limits, found, before = gates.latency, evidence.costs.latency, evidence.baseline_costs.latency
    if limits.max_median_ms is not None:
        yield _at_most("median latency in ms", found.median_ms if found else None, limits.max_median_ms, "the latency")
    if limits.max_p95_ms is not None:
        value = found.p95_ms if found else None
        yield _at_most("95th percentile of the latency in ms", value, limits.max_p95_ms, "the latency")
    if limits.max_ratio is not None:
        name = "median latency against the baseline"
        if evidence.baseline is None:
            sentence = "the latency has no baseline to compare with"
            yield _gate(name, None, limits.max_ratio, "skipped", sentence)
        else:
            ratio = found.median_ms / before.median_ms if found and before else None
            yield _at_most(name, ratio, limits.max_ratio, "the latency")


def _check_int8(evidence: GateEvidence, max_drop: float) -> Gate:
    value, why_not = evidence.candidate.find_value("AP", "")
    drop = None if value is None or evidence.int8_ap is None else value - evidence.int8_ap
    reason = why_not or "the model has no int8 TFLite variant that can be measured"
    return _at_most("AP lost by int8", drop, max_drop, f"AP lost by int8 ({reason})")


def _check_other_form(candidate: Measured, other: OtherForm, max_difference: float) -> Gate:
    values = {metric: candidate.find_value(metric, "")[0] for metric in FORM_METRICS}
    measured = {metric: value for metric, value in values.items() if value is not None}
    difference = None
    if measured and measured.keys() <= other.aps.keys():
        difference = max(abs(value - other.aps[metric]) for metric, value in measured.items())
    return _at_most(FORM_DIFFERENCE, difference, max_difference, f"the {FORM_DIFFERENCE}", digits=4)


def _at_most(name: str, value: float | None, limit: float, what: str, *, digits: int = 3) -> Gate:
    if value is None:
        return _gate(f"{name}, at most", None, limit, False, f"{what} was not measured, required: at most {limit:g}")
    passed = value <= limit + _ROUNDING
    sentence = f"{name} {value:.{digits}f} is {'at most' if passed else 'above'} {limit:g}"
    return _gate(f"{name}, at most", value, limit, passed, sentence)


def _gate(
    name: str,
    value: float | None,
    threshold: float | None,
    verdict: Verdict | bool,
    sentence: str,
    *,
    is_change: bool = False,
) -> Gate:
    if isinstance(verdict, bool):
        verdict = "passed" if verdict else "failed"
    return Gate(name=name, value=value, threshold=threshold, verdict=verdict, sentence=sentence, is_change=is_change)


def _is_at_least(value: float, threshold: float) -> bool:
    return value >= threshold - _ROUNDING


def _name(metric: str, slice_name: str) -> str:
    return f"{metric} of {slice_name}" if slice_name else metric


def capitalize(text: str) -> str:
    """Begin a sentence with a capital letter, unless it begins with the name of a metric such as mask_AP."""
    return text if text.startswith((MASK, KEYPOINT)) else f"{text[:1].upper()}{text[1:]}"
