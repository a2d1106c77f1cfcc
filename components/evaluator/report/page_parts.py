"""Cells of the sortable tables, labels and texts of the charts, which several sections of the page share."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from detloom.components.evaluator.analysis.bootstrap import ClassInterval, Interval
from detloom.components.evaluator.measurements import ClassCurve
from detloom.components.pages.formats import format_number, shorten
from detloom.trainer_module.evaluation.coco_metrics import NO_VALUE

Json = Mapping[str, Any]
MAX_ROWS = 500  # per table; limits the page for very large label maps
_MAX_LABEL_CHARS = 22  # next to a chart and above a column
_Class = TypeVar("_Class", ClassInterval, ClassCurve)


def columns_of(first: str, *numbers: str) -> list[Json]:
    """Build the columns of a sortable table: a name, then numbers."""
    return [{"title": first, "is_number": False}, *({"title": title, "is_number": True} for title in numbers)]


def name_cell(name: str) -> Json:
    return {"text": shorten(name)}


def number_cell(value: float | None, format_value: Callable[[float | None], str] = format_number) -> Json:
    return {"text": format_value(value), "value": None if value is None else round(value, 6)}


def measured(value: float) -> float | None:
    """Replace the COCO API's -1, which means no ground truth, by None."""
    return None if value == NO_VALUE else value


def change_of(value: float | None, before: float | None) -> float | None:
    return None if value is None or before is None else value - before


def format_interval(interval: Interval, format_end: Callable[[float | None], str]) -> str:
    """Format the ends of an interval; empty if it has none."""
    if interval.low is None or interval.high is None:
        return ""
    return f"{format_end(interval.low)} to {format_end(interval.high)}"


def short_label(name: str) -> str:
    return name if len(name) <= _MAX_LABEL_CHARS else name[: _MAX_LABEL_CHARS - 1] + "…"


def with_most_boxes(classes: Sequence[_Class], num_boxes_by_id: Mapping[int, int], limit: int) -> list[_Class]:
    return sorted(classes, key=lambda each: -num_boxes_by_id.get(each.class_id, 0))[:limit]


def with_texts(view: Json, texts: Sequence[str]) -> Json:
    rows = [{**row, "text": text} for row, text in zip(view["rows"], texts, strict=True)]
    return {**view, "rows": rows}
