"""The tables of metrics of the page: COCO, masks, keypoints, sizes, class agnostic, PASCAL VOC and Open Images."""

from collections.abc import Mapping

from detloom.components.evaluator.evaluation_result import EvaluationResult
from detloom.components.evaluator.measurements import Measurements
from detloom.components.evaluator.report.page_parts import Json, change_of, measured
from detloom.components.pages.formats import format_count
from detloom.schemas.contracts.runtime_names import FORM_TITLES
from detloom.trainer_module.evaluation.coco_metrics import CocoMetrics
from detloom.trainer_module.evaluation.keypoint_metrics import KeypointMetrics

_Metrics = CocoMetrics | KeypointMetrics
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


def metric_rows(candidate: CocoMetrics, baseline: CocoMetrics | None) -> list[Json]:
    """Return a row for each of the twelve COCO metrics."""
    return _rows(_METRIC_MEANINGS, candidate, baseline)


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
    return _rows(_KEYPOINT_MEANINGS, candidate, baseline)


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
    return _rows(_AGNOSTIC_MEANINGS, candidate.class_agnostic, baseline.class_agnostic if baseline else None)


def voc_rows(candidate: Measurements, baseline: Measurements | None) -> list[Json]:
    """Return rows with mAP by the rules of PASCAL VOC and Open Images."""
    rows = []
    for key, metrics in candidate.voc.items():
        name, meaning = _VOC_NAMES.get(key, (key, ""))
        before = baseline.voc[key].mAP if baseline and key in baseline.voc else None
        why_not = "no ground truth that counts" if metrics.mAP is None else None
        rows.append(_metric_row(name, meaning, metrics.mAP, before, why_not=why_not))
    return rows


def variant_rows(evaluation: EvaluationResult) -> list[Json]:
    """Return rows with the AP of the candidate and of its other forms."""
    before = measured(evaluation.candidate.coco.AP)
    values = {FORM_TITLES.get(name, name): measured(metrics.AP) for name, metrics in evaluation.variants.items()}
    return [
        {"name": name, "AP": value, "change": None if value is None or before is None else value - before}
        for name, value in ((evaluation.decision.form_title, before), *values.items())
    ]


def _rows(meanings: Mapping[str, str], candidate: _Metrics, baseline: _Metrics | None) -> list[Json]:
    rows = []
    for name, meaning in meanings.items():
        before = measured(baseline.value_of(name)) if baseline else None
        value, why_not = measured(candidate.value_of(name)), candidate.explain(name)
        rows.append(_metric_row(name, meaning, value, before, why_not=why_not))
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
