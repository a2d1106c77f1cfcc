"""The sortable tables of the page as plain values: classes, slices of images and of objects."""

from collections.abc import Mapping, Sequence

from detloom.components.evaluator.analysis.average_precision import OperatingPoint
from detloom.components.evaluator.evaluation_result import EvaluationResult
from detloom.components.evaluator.measurements import Measurements
from detloom.components.evaluator.report.page_parts import (
    MAX_ROWS,
    Json,
    change_of,
    columns_of,
    measured,
    name_cell,
    number_cell,
)
from detloom.components.evaluator.slices import ObjectRecall, SliceMetrics
from detloom.components.pages.formats import format_count, format_signed
from detloom.trainer_module.evaluation.coco_metrics import ClassMetrics

_COMPARED = ("AP", "AP50")  # of each class with the baseline


def class_table(evaluation: EvaluationResult) -> Json:
    """Build a row per class with metrics and operating points; at most 500 classes, those with the most boxes."""
    baseline = evaluation.baseline
    before = {row.class_id: row for row in baseline.coco.per_class} if baseline else {}
    curves = {curve.class_id: curve for curve in evaluation.candidate.curves}
    names = ("AP", "AP50", "AP75", "AR100", "APs", "APm", "APl")
    points = (
        "Best F1: score threshold",
        "Best F1: precision",
        "Best F1: recall",
        "Wanted precision: score threshold",
        "Wanted precision: recall",
    )
    masks = evaluation.candidate.masks
    mask_ap = {} if masks is None else {row.class_id: measured(row.AP) for row in masks.per_class}
    change = tuple(text for name in _COMPARED for text in (f"Baseline {name}", f"{name} change")) if baseline else ()
    classes: Sequence[ClassMetrics] = evaluation.candidate.coco.per_class
    if len(classes) > MAX_ROWS:
        classes = sorted(classes, key=lambda row: -row.num_boxes)[:MAX_ROWS]
    rows = []
    for row in classes:
        curve = curves.get(row.class_id)
        best, wanted = (curve.best_f1, curve.wanted) if curve else (None, None)
        rows.append(
            [
                name_cell(row.name),
                number_cell(row.num_boxes, format_count),
                *(number_cell(measured(row.value_of(name))) for name in names),
                *([number_cell(mask_ap[row.class_id])] if mask_ap else []),
                *(_compared_cells(row, before.get(row.class_id)) if baseline else []),
                *_point_cells(best, ("min_score", "precision", "recall")),
                *_point_cells(wanted, ("min_score", "recall")),
            ]
        )
    num_left_out = len(evaluation.candidate.coco.per_class) - len(rows)
    return {
        "columns": columns_of("Class", "Boxes", *names, *(("Mask AP",) if mask_ap else ()), *change, *points),
        "rows": rows,
        "num_more": num_left_out,
    }


def _compared_cells(row: ClassMetrics, before: ClassMetrics | None) -> list[Json]:
    cells = []
    for name in _COMPARED:
        value, value_before = measured(row.value_of(name)), measured(before.value_of(name)) if before else None
        cells += [number_cell(value_before), number_cell(change_of(value, value_before), format_signed)]
    return cells


def _point_cells(point: OperatingPoint | None, fields: Sequence[str]) -> list[Json]:
    return [number_cell(None if point is None else getattr(point, field)) for field in fields]


def slice_table(candidate: Measurements, baseline: Measurements | None) -> Json:
    """Build a row per slice of the images."""
    before = {each.name: measured(each.metrics.AP) for each in baseline.slices} if baseline else None
    names = ("AP", "AP50", "AR100")
    rows = []
    for each in candidate.slices[:MAX_ROWS]:
        metrics = each.metrics
        counts = [number_cell(count, format_count) for count in (metrics.num_images, metrics.num_boxes)]
        values = [number_cell(measured(metrics.value_of(name))) for name in names]
        rows.append([*counts, *values, *_change_cells(each.name, measured(metrics.AP), before)])
    titles = ("Images", "Boxes", *names, *(("AP change",) if baseline else ()))
    return _slices(candidate.slices, titles, rows, "few images")


def object_table(candidate: Measurements, baseline: Measurements | None) -> Json:
    """Build a row per slice of the objects with its recall."""
    before = {each.name: each.recall for each in baseline.object_slices} if baseline else None
    rows = []
    for each in candidate.object_slices[:MAX_ROWS]:
        values = [number_cell(each.num_objects, format_count), number_cell(each.recall50), number_cell(each.recall)]
        rows.append([*values, *_change_cells(each.name, each.recall, before)])
    titles = ("Objects", "Recall, IoU 0.50", "Recall, mean over IoU 0.50 to 0.95")
    change = ("Change of the mean",) if baseline else ()
    return _slices(candidate.object_slices, (*titles, *change), rows, "few objects")


def _change_cells(name: str, value: float | None, before: Mapping[str, float | None] | None) -> list[Json]:
    return [] if before is None else [number_cell(change_of(value, before.get(name)), format_signed)]


def _slices(
    slices: Sequence[SliceMetrics | ObjectRecall], titles: Sequence[str], rows: Sequence[list[Json]], note: str
) -> Json:
    """Add the names of the slices to the rows, and a note if some are small."""
    columns = columns_of("Slice", *titles)
    has_small = any(each.is_small for each in slices)
    if has_small:
        columns.append({"title": "", "is_number": False})
    named = []
    for each, cells in zip(slices, rows, strict=False):
        notes = [name_cell(note if each.is_small else "")] if has_small else []
        named.append([name_cell(each.name), *cells, *notes])
    return {"columns": columns, "rows": named, "num_more": len(slices) - len(rows)}
