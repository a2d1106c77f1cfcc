"""The top of the page: verdict, main numbers and the table of the gates."""

from collections.abc import Iterable

from detloom.components.evaluator.blessing import BlessingDecision
from detloom.components.evaluator.evaluation_result import EvaluationResult
from detloom.components.evaluator.gates import Gate, capitalize
from detloom.components.evaluator.report.page_parts import Json, format_interval, measured
from detloom.components.pages.formats import VERDICT_TEXTS, format_count, format_number, format_signed, shorten
from detloom.schemas.run_file.gates import Override

NOTHING = "–"
_MIB = 2**20
_DIGITS_APART = 6  # used if two numbers are equal to three decimals
_DIFFERENCE_TEXTS = {
    "none": "not significant",
    "better": "significantly better",
    "worse": "significantly worse",
}


def headline(decision: BlessingDecision) -> tuple[str, str]:
    """Return the verdict in words and as a CSS class."""
    if decision.override is not None and decision.blessed:
        return "Blessed by override", "warned"
    if decision.blessed and any(gate.verdict == "waived" for gate in decision.gates):
        return "Blessed without a floor", "warned"
    return ("Blessed", "passed") if decision.blessed else ("Not blessed", "failed")


def next_step(decision: BlessingDecision) -> str:
    """Return a sentence about what follows from the decision."""
    if decision.blessed:
        return "Next: the Pusher of the pipeline pushes this model. Without a pipeline, push it with detloom push."
    return (
        "Next: the model is not pushed. The sections Errors and Example images show what it gets wrong; the limits are "
        "in the section gates of the run file."
    )


def key_numbers(evaluation: EvaluationResult) -> list[tuple[str, str, str]]:
    """Return the main numbers as (name, number, note)."""
    candidate, comparison = evaluation.candidate.coco, evaluation.comparison
    interval = format_interval(comparison.candidate.AP, format_number)
    result = [
        ("AP", format_number(measured(candidate.AP)), interval),
        ("AP50", format_number(measured(candidate.AP50)), ""),
    ]
    classes = [row for row in candidate.per_class if measured(row.AP) is not None]
    if len(classes) > 1:
        weakest = min(classes, key=lambda row: row.AP)
        more = f"{shorten(weakest.name)}, {format_count(weakest.num_boxes)} objects"
        result.append(("AP of the weakest class", format_number(weakest.AP), more))
    shapes = (("Mask AP", evaluation.candidate.masks), ("Keypoint AP", evaluation.candidate.keypoints))
    result += [(name, format_number(measured(each.AP)), "") for name, each in shapes if each is not None]
    if comparison.ap_change is not None:
        parts = [format_interval(comparison.ap_change, format_signed)]
        parts += [_DIFFERENCE_TEXTS[evaluation.decision.difference]] if evaluation.decision.difference else []
        more = ", ".join(part for part in parts if part)
        result.append(("AP against the baseline", format_signed(comparison.ap_change.value), more))
    costs = evaluation.candidate_costs
    if costs.latency is not None:
        result.append(("Median latency", f"{costs.latency.median_ms:,.1f} ms", "per image"))
    if costs.model_bytes is not None:
        result.append(("Model size", format_mib(costs.model_bytes), ""))
    return result


def gate_rows(gates: Iterable[Gate]) -> list[Json]:
    return [
        {
            "name": capitalize(gate.name),
            "required": required,
            "measured": found,
            "verdict": gate.verdict,
            "verdict_text": VERDICT_TEXTS[gate.verdict],
            "sentence": f"{capitalize(gate.sentence)}.",
        }
        for gate in gates
        for required, found in [_format_pair(gate)]
    ]


def _format_pair(gate: Gate) -> tuple[str, str]:
    """Format required and measured value, with more digits if they would look equal otherwise."""
    is_change = gate.is_change

    def format_with(value: float | None, digits: int) -> str:
        if value is None:
            return NOTHING
        return f"{value:+.{digits}f}" if is_change else f"{value:,.{digits}f}"

    digits = 1 if gate.threshold is not None and gate.threshold >= 10 else 3
    required, found = format_with(gate.threshold, digits), format_with(gate.value, digits)
    if required == found and gate.threshold != gate.value:
        return format_with(gate.threshold, _DIGITS_APART), format_with(gate.value, _DIGITS_APART)
    return required, found


def override_text(override: Override) -> str:
    return f"Overridden by {override.by} until {override.until}: {override.reason.strip()}"


def format_mib(num_bytes: int) -> str:
    return f"{num_bytes / _MIB:,.1f} MiB"
