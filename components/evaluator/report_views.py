"""From an evaluation to what its page says: texts, rows of tables, groups of pictures. Plain values for a template."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from detloom.components.evaluator.analysis.bootstrap import Interval
from detloom.components.evaluator.analysis.operating_point import OperatingPoint
from detloom.components.evaluator.decision import Decision, Gate, Override
from detloom.components.evaluator.evaluation import Evaluation, ModelCosts, Picture, PictureKind
from detloom.components.evaluator.measurements import Measurements
from detloom.components.pages.formats import format_count, format_number, format_share_digits, format_signed, shorten
from detloom.schemas.metric_names import METRIC_NAMES
from detloom.trainer_module.coco_metrics import NO_VALUE, ClassMetrics, CocoMetrics

Json = Mapping[str, Any]

_NOTHING = "–"
_MIB = 2**20
MAX_ROWS = 500  # of a table; a page of a hostile label map must stay small
_DIGITS_APART = 6  # where three decimals do not tell two numbers apart
_NOTE = {"title": "", "is_number": False}
_VERDICT_TEXTS = {
    "passed": "✓ passed",
    "warned": "! warned",
    "failed": "✗ failed",
    "off": "off",
    "skipped": "– skipped",
}
_DIFFERENCE_TEXTS = {
    "none": "no difference beyond noise",
    "better": "better beyond noise",
    "worse": "worse beyond noise",
}
_METRIC_MEANINGS = {
    "AP": "mean over IoU 0.50 to 0.95",
    "AP50": "IoU 0.50",
    "AP75": "IoU 0.75",
    "APs": "small, below 32 × 32 px",
    "APm": "medium",
    "APl": "large, above 96 × 96 px",
    "AR1": "recall, 1 detection an image and class",
    "AR10": "recall, 10 detections",
    "AR100": "recall, 100 detections",
    "ARs": "recall, small",
    "ARm": "recall, medium",
    "ARl": "recall, large",
}
_AGNOSTIC_MEANINGS = {
    "AP": "is it found at all, whatever it is called",
    "AP50": "IoU 0.50",
    "AR100": "recall, 100 detections an image",
}
_VOC_NAMES = {
    "pascal_voc": ("PASCAL VOC 2010", "area under the curve; difficult objects count neither way"),
    "pascal_voc_2007": ("PASCAL VOC 2007", "mean of eleven precisions"),
    "weighted_pascal_voc": ("PASCAL VOC, weighted", "one curve over all classes, so frequent ones count more"),
    "open_images_v2": ("Open Images V2", "groups of objects are left out"),
    "open_images_challenge": (
        "Open Images challenge",
        "a group counts once; of classes neither shown nor verified in an image nothing counts",
    ),
}
_PICTURE_GROUPS: tuple[tuple[PictureKind, str, str], ...] = (
    ("false", "Surest mistakes", "Wrong detections of the highest scores; some may be objects that nobody labelled."),
    ("missed", "Largest missed objects", "Labelled objects that the candidate did not find, the largest first."),
    ("better", "Images that got better", "Where the candidate's F1 is furthest above the baseline's."),
    ("worse", "Images that got worse", "Where the candidate's F1 is furthest below the baseline's."),
    ("first", "First images of the split", "Not chosen for their result."),
)


def headline(decision: Decision) -> tuple[str, str]:
    """The verdict in words, and as the class of its section."""
    if decision.override is not None and decision.blessed:
        return "Blessed by override", "warned"
    return ("Blessed", "passed") if decision.blessed else ("Not blessed", "failed")


def key_numbers(evaluation: Evaluation) -> list[tuple[str, str, str]]:
    """What one looks for first, as (name, number, what belongs to it)."""
    candidate, comparison = evaluation.candidate.coco, evaluation.comparison
    interval = format_interval(comparison.candidate.AP, format_number)
    result = [
        ("AP", format_number(measured(candidate.AP)), interval),
        ("AP50", format_number(measured(candidate.AP50)), ""),
    ]
    if comparison.ap_change is not None:
        parts = [format_interval(comparison.ap_change, format_signed)]
        parts += [_DIFFERENCE_TEXTS[evaluation.decision.difference]] if evaluation.decision.difference else []
        more = ", ".join(part for part in parts if part)
        result.append(("AP against the baseline", format_signed(comparison.ap_change.value), more))
    costs = evaluation.candidate_costs
    if costs.latency is not None:
        result.append(("Median latency", f"{costs.latency.median_ms:,.1f} ms", "one image"))
    if costs.model_bytes is not None:
        result.append(("Model", format_mib(costs.model_bytes), ""))
    return result


def variant_rows(evaluation: Evaluation) -> list[Json]:
    """AP of the TFLite variants beside that of the SavedModel."""
    before = measured(evaluation.candidate.coco.AP)
    values = {name: measured(metrics.AP) for name, metrics in evaluation.variants.items()}
    return [
        {"name": name, "AP": value, "change": None if value is None or before is None else value - before}
        for name, value in (("SavedModel", before), *values.items())
    ]


def gate_rows(gates: Iterable[Gate]) -> list[Json]:
    return [
        {
            "name": f"{gate.name[:1].upper()}{gate.name[1:]}",
            "asked": asked,
            "found": found,
            "verdict": gate.verdict,
            "verdict_text": _VERDICT_TEXTS[gate.verdict],
            "sentence": f"{gate.sentence[:1].upper()}{gate.sentence[1:]}.",
        }
        for gate in gates
        for asked, found in [_format_pair(gate)]
    ]


def _format_pair(gate: Gate) -> tuple[str, str]:
    """Asked and found, with more digits where both would look the same and are not."""
    is_change = gate.is_change

    def format_with(value: float | None, digits: int) -> str:
        if value is None:
            return _NOTHING
        return f"{value:+.{digits}f}" if is_change else f"{value:,.{digits}f}"

    digits = 1 if gate.threshold is not None and gate.threshold >= 10 else 3
    asked, found = format_with(gate.threshold, digits), format_with(gate.value, digits)
    if asked == found and gate.threshold != gate.value:
        return format_with(gate.threshold, _DIGITS_APART), format_with(gate.value, _DIGITS_APART)
    return asked, found


def say_override(override: Override) -> str:
    return f"Overridden by {override.by}, until {override.until}: {override.reason.strip()}"


def metric_rows(candidate: CocoMetrics, baseline: CocoMetrics | None) -> list[Json]:
    """The twelve COCO numbers."""
    return [
        _metric_row(name, _METRIC_MEANINGS[name], *_both(candidate, baseline, name), why_not=candidate.explain(name))
        for name in METRIC_NAMES
    ]


def size_rows(candidate: CocoMetrics, baseline: CocoMetrics | None) -> list[Json]:
    """AP of the sizes that the configuration names."""
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
    """With all classes taken for one."""
    metrics, before = candidate.class_agnostic, baseline.class_agnostic if baseline else None
    return [
        _metric_row(name, meaning, *_both(metrics, before, name), why_not=metrics.explain(name))
        for name, meaning in _AGNOSTIC_MEANINGS.items()
    ]


def voc_rows(candidate: Measurements, baseline: Measurements | None) -> list[Json]:
    """mAP by the rules of PASCAL VOC and Open Images."""
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


def class_table(evaluation: Evaluation) -> Json:
    """A row a class: the metrics, and the thresholds of its score. Of very many classes those with the most boxes."""
    baseline = evaluation.baseline
    before = {row.class_id: row for row in baseline.coco.per_class} if baseline else {}
    curves = {curve.class_id: curve for curve in evaluation.candidate.curves}
    names = ("AP", "AP50", "AP75", "AR100", "APs", "APm", "APl")
    points = ("Best F1: score", "precision", "recall", "Wanted precision: score", "recall")
    change = ("AP change",) if baseline else ()
    classes: Sequence[ClassMetrics] = evaluation.candidate.coco.per_class
    if len(classes) > MAX_ROWS:
        classes = sorted(classes, key=lambda row: -row.num_boxes)[:MAX_ROWS]
    rows = []
    for row in classes:
        ap_before = measured(before[row.class_id].AP) if row.class_id in before else None
        curve = curves.get(row.class_id)
        best, wanted = (curve.best_f1, curve.wanted) if curve else (None, None)
        rows.append(
            [
                name_cell(row.name),
                number_cell(row.num_boxes, format_count),
                *(number_cell(measured(row.value_of(name))) for name in names),
                *([number_cell(change_of(measured(row.AP), ap_before), format_signed)] if baseline else []),
                *_point_cells(best, ("min_score", "precision", "recall")),
                *_point_cells(wanted, ("min_score", "recall")),
            ]
        )
    num_left_out = len(evaluation.candidate.coco.per_class) - len(rows)
    return {"columns": columns_of("Class", "Boxes", *names, *change, *points), "rows": rows, "num_more": num_left_out}


def _point_cells(point: OperatingPoint | None, fields: Sequence[str]) -> list[Json]:
    return [number_cell(None if point is None else getattr(point, field)) for field in fields]


def slice_table(candidate: Measurements, baseline: Measurements | None) -> Json:
    """A row a slice of the images."""
    before = {each.name: each.metrics for each in baseline.slices} if baseline else {}
    has_small = any(each.is_small for each in candidate.slices)
    rows = []
    for each in candidate.slices[:MAX_ROWS]:
        metrics, of_baseline = each.metrics, before.get(each.name)
        change = change_of(measured(metrics.AP), measured(of_baseline.AP) if of_baseline else None)
        rows.append(
            [
                name_cell(each.name),
                number_cell(metrics.num_images, format_count),
                number_cell(metrics.num_boxes, format_count),
                *(number_cell(measured(metrics.value_of(name))) for name in ("AP", "AP50", "AR100")),
                *([number_cell(change, format_signed)] if baseline else []),
                *([name_cell("few images" if each.is_small else "")] if has_small else []),
            ]
        )
    titles = ("Images", "Boxes", "AP", "AP50", "AR100", *(("AP change",) if baseline else ()))
    columns = [*columns_of("Slice", *titles), *([_NOTE] if has_small else [])]
    return {"columns": columns, "rows": rows, "num_more": len(candidate.slices) - len(rows)}


def object_table(candidate: Measurements, baseline: Measurements | None) -> Json:
    """A row a kind of objects, and how many of them are found."""
    before = {each.name: each.recall for each in baseline.object_slices} if baseline else {}
    has_small = any(each.is_small for each in candidate.object_slices)
    rows = [
        [
            name_cell(each.name),
            number_cell(each.num_objects, format_count),
            number_cell(each.recall50),
            number_cell(each.recall),
            *([number_cell(change_of(each.recall, before.get(each.name)), format_signed)] if baseline else []),
            *([name_cell("few objects" if each.is_small else "")] if has_small else []),
        ]
        for each in candidate.object_slices[:MAX_ROWS]
    ]
    titles = ("Objects", "Recall, IoU 0.50", "Recall, mean", *(("Change of the mean",) if baseline else ()))
    columns = [*columns_of("Slice", *titles), *([_NOTE] if has_small else [])]
    return {"columns": columns, "rows": rows, "num_more": len(candidate.object_slices) - len(rows)}


def cost_rows(evaluation: Evaluation) -> list[Json]:
    """Latency and size of the models; empty where nothing was measured."""
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


def run_lines(evaluation: Evaluation) -> list[tuple[str, str]]:
    resampled = evaluation.comparison.candidate
    confidence = format_share_digits(resampled.confidence)
    text = f"{confidence} % intervals from {format_count(resampled.num_resamples)} draws of the images"
    return [*evaluation.lines, ("Intervals", text)]


def health_rows(data_health: Iterable[tuple[str, str, str]]) -> list[Json]:
    """Of the data's report; a verdict that the page does not know stands as it is."""
    return [
        {
            "name": name,
            "value": value,
            "verdict": verdict if verdict in _VERDICT_TEXTS else "off",
            "verdict_text": _VERDICT_TEXTS.get(verdict, verdict),
        }
        for name, value, verdict in data_health
    ]


def picture_groups(pictures: Sequence[Picture]) -> list[Json]:
    """By what they were chosen for; groups without pictures are left out."""
    groups = [
        {"title": title, "sentence": sentence, "pictures": [each for each in pictures if each.kind == kind]}
        for kind, title, sentence in _PICTURE_GROUPS
    ]
    return [group for group in groups if group["pictures"]]


def measured(value: float) -> float | None:
    """None for the -1 with which the COCO API says that there is nothing to measure."""
    return None if value == NO_VALUE else value


def change_of(value: float | None, before: float | None) -> float | None:
    return None if value is None or before is None else value - before


def format_interval(interval: Interval, format_end: Callable[[float | None], str]) -> str:
    """Its ends; empty where there are none."""
    if interval.low is None or interval.high is None:
        return ""
    return f"{format_end(interval.low)} to {format_end(interval.high)}"


def format_mib(num_bytes: int) -> str:
    return f"{num_bytes / _MIB:,.1f} MiB"


def columns_of(first: str, *numbers: str) -> list[Json]:
    """Of a sortable table: a name, then numbers."""
    return [{"title": first, "is_number": False}, *({"title": title, "is_number": True} for title in numbers)]


def name_cell(name: str) -> Json:
    return {"text": shorten(name)}


def number_cell(value: float | None, format_value: Callable[[float | None], str] = format_number) -> Json:
    return {"text": format_value(value), "value": None if value is None else round(value, 6)}


def _both(candidate: CocoMetrics, baseline: CocoMetrics | None, name: str) -> tuple[float | None, float | None]:
    return measured(candidate.value_of(name)), measured(baseline.value_of(name)) if baseline else None
