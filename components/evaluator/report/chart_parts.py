"""Labels, texts and the selection of classes that several charts of the page share."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from detloom.components.evaluator.analysis.bootstrap import ClassInterval
from detloom.components.evaluator.measurements import ClassCurve
from detloom.components.evaluator.report.table_cells import Json

_MAX_LABEL_CHARS = 22  # next to a chart and above a column
_Class = TypeVar("_Class", ClassInterval, ClassCurve)


def short_label(name: str) -> str:
    return name if len(name) <= _MAX_LABEL_CHARS else name[: _MAX_LABEL_CHARS - 1] + "…"


def with_most_boxes(classes: Sequence[_Class], num_boxes_by_id: Mapping[int, int], limit: int) -> list[_Class]:
    return sorted(classes, key=lambda each: -num_boxes_by_id.get(each.class_id, 0))[:limit]


def with_texts(view: Json, texts: Sequence[str]) -> Json:
    rows = [{**row, "text": text} for row, text in zip(view["rows"], texts, strict=True)]
    return {**view, "rows": rows}
