"""Convert an evaluation to plain values for the page's template: texts, rows of metrics."""

from collections.abc import Iterable

from detloom.components.evaluator.blessing import BlessingDecision
from detloom.components.evaluator.evaluation_result import EvaluationResult, ModelCosts
from detloom.components.evaluator.gates import Gate, capitalize
from detloom.components.evaluator.measurements import Measurements
from detloom.components.evaluator.report.tables import Json, change_of, format_interval, measured
from detloom.components.pages.formats import (
    format_count,
    format_number,
    format_share_digits,
    format_signed,
    shorten,
)
from detloom.schemas.contracts.metric_names import KEYPOINT_METRIC_NAMES, METRIC_NAMES
from detloom.schemas.run_file.evaluator_and_gates import Override
from detloom.trainer_module.evaluation.coco_metrics import CocoMetrics
from detloom.trainer_module.evaluation.keypoint_metrics import KeypointMetrics

_NOTHING = "–"
_MIB = 2**20
_DIGITS_APART = 6  # used if two numbers are equal to three decimals
_VERDICT_TEXTS = {
    "passed": "✓ passed",
    "warned": "! warned",
    "failed": "✗ failed",
    "off": "off",
    "skipped": "– skipped",
    "waived": "✗ waived",
}
_DIFFERENCE_TEXTS = {
    "none": "not significant",
    "better": "significantly better",
    "worse": "significantly worse",
}
_METRIC_MEANINGS = {
    "AP": "mean over IoU 0.50 to 0.95",
    "AP50": "IoU 0.50",
    "AP75": "IoU 0.75",
    "APs": "small, below 32 × 32 px",
    "APm": "medium",
    "APl": "large, above 96 × 96 px",
    "AR1": "recall, at most 1 detection per image and class",
    "AR10": "recall, at most 10 detections",
    "AR100": "recall, at most 100 detections",
    "ARs": "recall, small",
    "ARm": "recall, medium",
    "ARl": "recall, large",
}
_KEYPOINT_MEANINGS = {
    "AP": "mean over similarity 0.50 to 0.95",
    "AP50": "similarity 0.50",
    "AP75": "similarity 0.75",
    "APm": "medium, 32 × 32 to 96 × 96 px",
    "APl": "large, above 96 × 96 px",
    "AR": "recall, at most 20 detections per image",
    "AR50": "recall, similarity 0.50",
    "AR75": "recall, similarity 0.75",
    "ARm": "recall, medium",
    "ARl": "recall, large",
}
_AGNOSTIC_MEANINGS = {
    "AP": "mean over IoU 0.50 to 0.95",
    "AP50": "IoU 0.50",
    "AR100": "recall, at most 100 detections per image",
}
_VOC_NAMES = {
    "pascal_voc": ("PASCAL VOC 2010", "area under the curve; difficult objects are ignored"),
    "pascal_voc_2007": ("PASCAL VOC 2007", "mean of eleven precisions; difficult objects are ignored"),
    "weighted_pascal_voc": ("PASCAL VOC, weighted", "one curve over all classes; frequent classes weigh more"),
    "open_images_v2": ("Open Images V2", "groups of objects are ignored"),
    "open_images_challenge": (
        "Open Images challenge",
        "a group counts as one object; detections of classes not verified for an image are ignored",
    ),
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


def variant_rows(evaluation: EvaluationResult) -> list[Json]:
    """Return rows with the AP of the SavedModel and of the TFLite variants."""
    before = measured(evaluation.candidate.coco.AP)
    values = {name: measured(metrics.AP) for name, metrics in evaluation.variants.items()}
    return [
        {"name": name, "AP": value, "change": None if value is None or before is None else value - before}
        for name, value in (("SavedModel", before), *values.items())
    ]


def gate_rows(gates: Iterable[Gate]) -> list[Json]:
    return [
        {
            "name": capitalize(gate.name),
            "required": required,
            "measured": found,
            "verdict": gate.verdict,
            "verdict_text": _VERDICT_TEXTS[gate.verdict],
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
            return _NOTHING
        return f"{value:+.{digits}f}" if is_change else f"{value:,.{digits}f}"

    digits = 1 if gate.threshold is not None and gate.threshold >= 10 else 3
    required, found = format_with(gate.threshold, digits), format_with(gate.value, digits)
    if required == found and gate.threshold != gate.value:
        return format_with(gate.threshold, _DIGITS_APART), format_with(gate.value, _DIGITS_APART)
    return required, found


def say_override(override: Override) -> str:
    return f"Overridden by {override.by} until {override.until}: {override.reason.strip()}"


def metric_rows(candidate: CocoMetrics, baseline: CocoMetrics | None) -> list[Json]:
    """Return a row for each of the twelve COCO metrics."""
    return [
        _metric_row(name, _METRIC_MEANINGS[name], *_both(candidate, baseline, name), why_not=candidate.explain(name))
        for name in METRIC_NAMES
    ]


def shape_tables(candidate: Measurements, baseline: Measurements | None) -> list[Json]:
    """Return a table of COCO metrics for masks, and one for keypoints, if the candidate has them."""
    tables: list[Json] = []
    if candidate.masks is not None:
        rows = metric_rows(candidate.masks, baseline.masks if baseline else None)
        tables.append({"title": "Masks", "sentence": "The overlap is that of the pixels of the masks.", "rows": rows})
    if candidate.keypoints is not None:
        rows = keypoint_rows(candidate.keypoints, baseline.keypoints if baseline else None)
        sentence = "The overlap is the object keypoint similarity. Objects without labelled keypoints are ignored."
        tables.append({"title": "Keypoints", "sentence": sentence, "rows": rows})
    return tables


def keypoint_rows(candidate: KeypointMetrics, baseline: KeypointMetrics | None) -> list[Json]:
    """Return a row for each of the ten COCO keypoint metrics."""
    return [
        _metric_row(name, _KEYPOINT_MEANINGS[name], *_both(candidate, baseline, name), why_not=candidate.explain(name))
        for name in KEYPOINT_METRIC_NAMES
    ]


def size_rows(candidate: CocoMetrics, baseline: CocoMetrics | None) -> list[Json]:
    """Return a row with AP for each size of the configuration."""
    before = {row.name: row for row in baseline.per_size} if baseline else {}
    rows = []
    for row in candidate.per_size:
        low, high = row.min_area_px**0.5, row.max_area_px**0.5
        meaning = f"{low:g} to {high:g} px, {format_count(row.num_boxes)} boxes"
        ap_before = measured(before[row.name].AP) if row.name in before else None
        why_not = None if measured(row.AP) is not None else "no ground truth of this size"
        rows.append(_metric_row(row.name, meaning, measured(row.AP), ap_before, why_not=why_not))
    return rows


def agnostic_rows(candidate: Measurements, baseline: Measurements | None) -> list[Json]:
    """Return rows with class-agnostic metrics."""
    metrics, before = candidate.class_agnostic, baseline.class_agnostic if baseline else None
    return [
        _metric_row(name, meaning, *_both(metrics, before, name), why_not=metrics.explain(name))
        for name, meaning in _AGNOSTIC_MEANINGS.items()
    ]


def voc_rows(candidate: Measurements, baseline: Measurements | None) -> list[Json]:
    """Return rows with mAP by the rules of PASCAL VOC and Open Images."""
    rows = []
    for key, metrics in candidate.voc.items():
        name, meaning = _VOC_NAMES.get(key, (key, ""))
        before = baseline.voc[key].mAP if baseline and key in baseline.voc else None
        why_not = "no ground truth that counts" if metrics.mAP is None else None
        rows.append(_metric_row(name, meaning, metrics.mAP, before, why_not=why_not))
    return rows


def _metric_row(name: str, meaning: str, value: float | None, before: float | None, *, why_not: str | None) -> Json:
    return {
        "name": name,
        "meaning": f"{meaning}: {why_not}" if why_not else meaning,
        "is_unmeasured": why_not is not None,
        "candidate": value,
        "baseline": before,
        "change": change_of(value, before),
    }


def cost_rows(evaluation: EvaluationResult) -> list[Json]:
    """Return rows with latency and size of the models; empty if nothing was measured."""
    models = (("Candidate", evaluation.candidate_costs), ("Baseline", evaluation.baseline_costs))
    return [_cost_row(name, costs) for name, costs in models if costs != ModelCosts()]


def _cost_row(name: str, costs: ModelCosts) -> Json:
    latency = costs.latency
    return {
        "name": name,
        "median": f"{latency.median_ms:,.1f} ms" if latency else _NOTHING,
        "p95": f"{latency.p95_ms:,.1f} ms" if latency else _NOTHING,
        "num_images": format_count(latency.num_images if latency else None),
        "size": _NOTHING if costs.model_bytes is None else format_mib(costs.model_bytes),
    }


def run_lines(evaluation: EvaluationResult) -> list[tuple[str, str]]:
    resampled = evaluation.comparison.candidate
    confidence = format_share_digits(resampled.confidence)
    text = f"{confidence} % bootstrap intervals from {format_count(resampled.num_resamples)} resamples of the images"
    return [*evaluation.lines, ("Intervals", text)]


def health_rows(data_health: Iterable[tuple[str, str, str]]) -> list[Json]:
    """Return rows of the data report; an unknown verdict is shown unchanged."""
    return [
        {
            "name": name,
            "value": value,
            "verdict": verdict if verdict in _VERDICT_TEXTS else "off",
            "verdict_text": _VERDICT_TEXTS.get(verdict, verdict),
        }
        for name, value, verdict in data_health
    ]


def format_mib(num_bytes: int) -> str:
    return f"{num_bytes / _MIB:,.1f} MiB"


def _both(
    candidate: CocoMetrics | KeypointMetrics, baseline: CocoMetrics | KeypointMetrics | None, name: str
) -> tuple[float | None, float | None]:
    return measured(candidate.value_of(name)), measured(baseline.value_of(name)) if baseline else None
