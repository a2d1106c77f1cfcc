"""Combine the gates into a blessing with a reason; no I/O."""

import datetime
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from detloom.components.evaluator.analysis.bootstrap import Interval
from detloom.components.evaluator.gates import (
    CONSTANT,
    CONTRACT,
    Gate,
    GateEvidence,
    capitalize,
    check_gates,
    is_blind,
)
from detloom.schemas.contracts.runtime_names import FORM_SAVED_MODEL, FORM_TITLES
from detloom.schemas.run_file.gates import Gates, Override

Difference = Literal["better", "worse", "none"]


@dataclass(frozen=True, kw_only=True)
class BlessingDecision:
    """The verdict; `reason` is one sentence with the numbers that decided, without the verdict.

    Attributes:
        difference: whether the difference in AP to the baseline is significant; None without a baseline.
        model_digest: `Manifest.digest` of the evaluated files; empty if only detections were evaluated.
        forms: the form of the model that the gates judge, and the other one if its gate passed; see
            `schemas/contracts/runtime_names.py`. Empty if only detections were evaluated.
        override: the override that blessed the candidate although gates failed.
    """

    blessed: bool
    reason: str
    gates: tuple[Gate, ...]
    baseline_problem: str | None = None
    difference: Difference | None = None
    override: Override | None = None
    model_digest: str = ""
    forms: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The verdict and the reason."""
        return f"{'Blessed' if self.blessed else 'Not blessed'}: {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "gates": [asdict(gate) for gate in self.gates], "forms": list(self.forms)}

    @property
    def form_title(self) -> str:
        """Name for readers of the form that the gates judge."""
        return FORM_TITLES[self.forms[0] if self.forms else FORM_SAVED_MODEL]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "BlessingDecision":
        override = Override(**values["override"]) if values["override"] else None
        gates, forms = tuple(Gate(**gate) for gate in values["gates"]), tuple(values.get("forms", ()))
        return cls(**{**values, "gates": gates, "forms": forms, "override": override})


def decide(evidence: GateEvidence, gates: Gates, today: datetime.date) -> BlessingDecision:
    """Bless the candidate if all gates pass; a gate whose value could not be measured fails."""
    results = tuple(check_gates(evidence, gates))
    failed = [gate for gate in results if gate.verdict == "failed"]
    override = gates.override if failed and evidence.contract_problem is None else None
    if override is not None and today > datetime.date.fromisoformat(override.until):
        override = None
    blessed = not failed or override is not None
    return BlessingDecision(
        blessed=blessed,
        reason=_reason(evidence, gates, results, override),
        gates=results,
        baseline_problem=evidence.baseline_problem,
        difference=_difference(evidence.ap_change),
        override=override,
    )


def _difference(ap_change: Interval | None) -> Difference | None:
    if ap_change is None or ap_change.low is None or ap_change.high is None:
        return None
    if ap_change.holds(0):
        return "none"
    if is_blind(ap_change):
        return None
    return "better" if ap_change.low > 0 else "worse"


def _reason(evidence: GateEvidence, gates: Gates, results: tuple[Gate, ...], override: Override | None) -> str:
    failed = "; ".join(gate.sentence for gate in results if gate.verdict == "failed")
    if override is not None:
        why = override.reason.strip().rstrip(".")
        text = f"override by {override.by} until {override.until} ({why}), although {failed}"
    elif failed and gates.override is not None and evidence.contract_problem is not None:
        text = f"{failed}; an override cannot bless a model that violates the serving contract"
    elif failed and gates.override is not None:
        text = f"{failed}; the override by {gates.override.by} expired on {gates.override.until}"
    elif failed:
        text = failed
    else:
        is_compared = evidence.baseline is not None  # then the built-in floor decides only if it fails
        text = "; ".join(
            gate.sentence
            for gate in results
            if gate.name != CONTRACT and not (is_compared and gate.name == CONSTANT and gate.verdict == "passed")
        )
    return f"{capitalize(text)}."
