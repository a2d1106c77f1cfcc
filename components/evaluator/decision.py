"""Is the candidate good enough? Pure: metrics in, a decision with its reason out."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from detloom.schemas.run_file import Gates
from detloom.trainer_module.coco_metrics import CocoMetrics

_ROUNDING = 1e-9  # a metric is a mean of quotients: a floor of 1.0 must not fail on its last digit


@dataclass(frozen=True, kw_only=True)
class Gate:
    """One condition. `value` is None where it could not be measured; `sentence` says what was found, with numbers."""

    name: str
    value: float | None
    threshold: float
    passed: bool
    sentence: str


@dataclass(frozen=True, kw_only=True)
class Decision:
    """`reason` is one sentence that names the numbers on which the verdict rests, without the verdict."""

    blessed: bool
    reason: str
    gates: tuple[Gate, ...]
    baseline_problem: str | None = None

    @property
    def sentence(self) -> str:
        """Verdict and reason."""
        return f"{'Blessed' if self.blessed else 'Not blessed'}: {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "gates": [asdict(gate) for gate in self.gates]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Decision":
        return cls(**{**values, "gates": tuple(Gate(**gate) for gate in values["gates"])})


def decide(
    candidate: CocoMetrics, baseline: CocoMetrics | None, gates: Gates, *, baseline_problem: str | None = None
) -> Decision:
    """Bless when every floor holds and AP is at least the baseline's plus `min_ap_change`.

    A number that could not be measured (-1) passes no gate. With neither an earlier model nor a floor all is blessed;
    where there is an earlier model that cannot be compared, and no floor, nothing is.

    Args:
        baseline: measured on the same images; None when there is none, or none that can be compared.
        baseline_problem: why a baseline that exists was not compared, as the end of a sentence.
    """
    results = [_check_floor(candidate, floor.metric, floor.min) for floor in gates.floors]
    if baseline is not None:
        results.append(_check_change(candidate, baseline, gates.min_ap_change))
    has_no_ground = baseline_problem is not None and not results
    blessed = all(gate.passed for gate in results) and not has_no_ground
    parts = [gate.sentence for gate in results if gate.passed == blessed]
    if has_no_ground:
        parts.append(f"the baseline could not be compared: {baseline_problem}; no floor is set: set gates.floors")
    elif baseline_problem:
        parts.append(f"not compared with a baseline: {baseline_problem}")
    elif blessed and baseline is None:
        parts.append("there is no earlier blessed model to compare with")
    if blessed and not gates.floors:
        parts.append(f"no floor is set (AP is {candidate.AP:.3f})")
    text = "; ".join(parts)
    reason = f"{text[0].upper()}{text[1:]}."
    return Decision(blessed=blessed, reason=reason, gates=tuple(results), baseline_problem=baseline_problem)


def _check_floor(candidate: CocoMetrics, metric: str, minimum: float) -> Gate:
    value, why_not = candidate.value_of(metric), candidate.explain(metric)
    passed = why_not is None and value >= minimum - _ROUNDING
    if why_not is not None:
        sentence = f"{metric} could not be measured ({why_not}), at least {minimum:.3f} is asked"
    else:
        sentence = f"{metric} {value:.3f} is {'at least' if passed else 'below'} {minimum:.3f}"
    return Gate(
        name=f"{metric} at least",
        value=value if why_not is None else None,
        threshold=minimum,
        passed=passed,
        sentence=sentence,
    )


def _check_change(candidate: CocoMetrics, baseline: CocoMetrics, min_change: float) -> Gate:
    name = "AP change against the baseline, at least"
    why_not = candidate.explain("AP")  # the same images: the baseline's is measured or not alike
    if why_not is not None:
        sentence = f"AP could not be compared with the baseline ({why_not})"
        return Gate(name=name, value=None, threshold=min_change, passed=False, sentence=sentence)
    change = candidate.AP - baseline.AP
    passed = change >= min_change - _ROUNDING
    asked = f"{'at least' if passed else 'but at least'} {min_change:+.3f} is asked"
    sentence = f"AP {candidate.AP:.3f} is {change:+.3f} against the baseline's {baseline.AP:.3f}, {asked}"
    return Gate(name=name, value=change, threshold=min_change, passed=passed, sentence=sentence)
