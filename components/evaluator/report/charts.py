"""Charts of the report page: SVG as text and bars as plain values, with their captions."""

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, TypeVar

from detloom.components.evaluator.analysis.bootstrap import ClassInterval, Interval
from detloom.components.evaluator.analysis.confidence_calibration import Calibration
from detloom.components.evaluator.analysis.confusion import Confusion
from detloom.components.evaluator.analysis.error_types import ErrorCosts, ErrorType
from detloom.components.evaluator.baseline_comparison import Comparison
from detloom.components.evaluator.measurements import ClassCurve
from detloom.components.evaluator.report.tables import (
    MAX_ROWS,
    Json,
    columns_of,
    format_interval,
    name_cell,
    number_cell,
)
from detloom.components.pages.charts import PAGE_LOOK, Line, bars, format_svg, ticks
from detloom.components.pages.formats import format_count, format_number, format_share_digits, format_signed

MAX_CURVES = 12
MAX_MATRIX_CLASSES = 15
MAX_PAIRS = 15
_CURVES_PER_CHART = len(PAGE_LOOK.line_colors)
_MAX_INTERVALS = 30  # classes in the chart; the table has all
_MAX_TRAINING_CHARTS = 24
_MAX_SHADE = 0.55  # opacity at which text is still readable in light and dark mode
_MAX_LABEL_CHARS = 22  # next to a chart and above a column
_Class = TypeVar("_Class", ClassInterval, ClassCurve)
_ERROR_MEANINGS = {
    ErrorType.LOCALIZATION: "Correct class, poorly localized (IoU 0.1 to 0.5).",
    ErrorType.CLASSIFICATION: "Well localized (IoU at least 0.5), wrong class.",
    ErrorType.BOTH: "Wrong class and poorly localized.",
    ErrorType.DUPLICATE: "The object already has a detection with a higher score.",
    ErrorType.BACKGROUND: "No labelled object (IoU at most 0.1).",
    ErrorType.MISSED: "Unmatched ground truth without a localization or classification error.",
}


def interval_view(comparison: Comparison, num_boxes_by_id: Mapping[int, int]) -> Json | None:
    """Build chart and table of the change of AP, overall and by class; None without a baseline."""
    difference, baseline = comparison.difference, comparison.baseline
    if difference is None or baseline is None:
        return None
    overall = ("All classes", comparison.candidate.AP, baseline.AP, difference.AP)
    parts = list(zip(comparison.candidate.per_class, baseline.per_class, difference.per_class, strict=True))
    parts = parts if len(parts) > 1 else []  # a single class would repeat the first row
    measured = [change for *_, change in parts if change.AP.value is not None]
    if len(measured) > _MAX_INTERVALS:
        measured = _with_most_boxes(measured, num_boxes_by_id, _MAX_INTERVALS)
    rows = [_interval_cells(first.name, first.AP, second.AP, change.AP) for first, second, change in parts[:MAX_ROWS]]
    return {
        "svg": format_intervals([("All classes", difference.AP), *((each.name, each.AP) for each in measured)]),
        "num_drawn": len(measured),
        "num_classes": sum(change.AP.value is not None for *_, change in parts),
        "confidence": format_share_digits(difference.confidence),
        "columns": columns_of(
            "Class",
            "Candidate AP",
            "Interval of candidate",
            "Baseline AP",
            "Interval of baseline",
            "Change",
            "Interval of change",
        ),
        "rows": [_interval_cells(*overall), *rows],
        "num_more": len(parts) - len(rows),
    }


def _with_most_boxes(classes: Sequence[_Class], num_boxes_by_id: Mapping[int, int], limit: int) -> list[_Class]:
    return sorted(classes, key=lambda each: -num_boxes_by_id.get(each.class_id, 0))[:limit]


def _interval_cells(name: str, candidate: Interval, baseline: Interval, change: Interval) -> list[Json]:
    cells = [name_cell(name)]
    for interval, format_value in ((candidate, format_number), (baseline, format_number), (change, format_signed)):
        cells.append(number_cell(interval.value, format_value))
        cells.append({"text": format_interval(interval, format_value), "value": interval.low})
    return cells


def format_intervals(rows: Sequence[tuple[str, Interval]]) -> str:
    """Draw an SVG with a row for each interval and a line at zero; intervals without zero are coloured."""
    width, left, right, top, row_height = 480, 150, 20, 6, 24
    ends = [end for _, each in rows for end in (each.low, each.high, each.value) if end is not None]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    margin = 0.05 * (high - low) or 0.01
    low, high = low - margin, high + margin
    bottom = top + row_height * len(rows)

    def across(value: float) -> float:
        return left + (width - left - right) * (value - low) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom + 40}" font-family="sans-serif" '
        'font-size="12" class="chart" fill="currentColor" role="img" aria-label="Change of AP with its interval">'
    ]
    for value in ticks(low, high):
        parts.append(_vertical(across(value), top, bottom, "var(--line)"))
        parts.append(_text(across(value), bottom + 16, f"{value:+g}" if value else "0", "middle"))
    parts.append(_vertical(across(0.0), top, bottom, "var(--soft)", ' stroke-width="1.5"'))
    parts.append(_text((left + width - right) / 2, bottom + 34, "change of AP", "middle"))
    for number, (name, interval) in enumerate(rows):
        middle = top + row_height * (number + 0.5)
        weight = ' font-weight="bold"' if number == 0 else ""
        parts.append(_text(left - 10, middle + 4, _label(name), "end", weight))
        parts += _interval_marks(interval, across, middle)
    return "\n".join([*parts, "</svg>", ""])


def _interval_marks(interval: Interval, across: Callable[[float], float], middle: float) -> list[str]:
    if interval.value is None:
        return []
    is_sure = interval.low != interval.high and not interval.holds(0)  # zero width: a single image
    color = "var(--soft)" if not is_sure else "var(--good)" if interval.value > 0 else "var(--bad)"
    marks = [f'<circle cx="{across(interval.value):.1f}" cy="{middle:.1f}" r="4" fill="{color}"/>']
    if interval.low is not None and interval.high is not None:
        ends = f'x1="{across(interval.low):.1f}" x2="{across(interval.high):.1f}"'
        marks.append(f'<line {ends} y1="{middle:.1f}" y2="{middle:.1f}" stroke="{color}" stroke-width="2"/>')
    return marks


def _vertical(x: float, top: float, bottom: float, color: str, more: str = "") -> str:
    return f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}" stroke="{color}"{more}/>'


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def _label(name: str) -> str:
    return name if len(name) <= _MAX_LABEL_CHARS else name[: _MAX_LABEL_CHARS - 1] + "…"


def curve_charts(curves: Sequence[ClassCurve], num_boxes_by_id: Mapping[int, int]) -> Json:
    """Draw precision over recall at IoU 0.50 of the classes with the most boxes; one curve per colour in a chart."""
    measured = [curve for curve in curves if curve.precision50]
    largest = _with_most_boxes(measured, num_boxes_by_id, MAX_CURVES)
    charts = []
    for start in range(0, len(largest), _CURVES_PER_CHART):
        part = largest[start : start + _CURVES_PER_CHART]
        lines = [Line(name=curve.name, points=_curve_points(curve.precision50)) for curve in part]
        svg = format_svg(
            "Precision over recall at IoU 0.50",
            "recall",
            "precision",
            lines,
            x_range=(0.0, 1.0),
            y_range=(0.0, 1.0),
            look=PAGE_LOOK,
        )
        title = "Precision over recall, IoU 0.50"
        if len(largest) > _CURVES_PER_CHART:
            title += f", classes {start + 1} to {start + len(part)}"
        charts.append({"title": title, "svg": svg, "names": [_label(curve.name) for curve in part]})
    return {"charts": charts, "num_shown": len(largest), "num_classes": len(measured)}


def _curve_points(precision: Sequence[float]) -> list[tuple[float, float]]:
    """Return the points of a curve up to the first recall that is not reached."""
    last = next((i for i, value in enumerate(precision) if value == 0), len(precision) - 1)
    step = 1 / (len(precision) - 1)
    return [(i * step, value) for i, value in enumerate(precision[: last + 1])]


def calibration_view(calibration: Calibration) -> Json | None:
    """Build bars of mean score and precision by bins of scores; None without detections."""
    filled = [each for each in calibration.bins if each.num_detections]
    if not filled:
        return None
    names = [f"{each.low:.1f} to {each.high:.1f}" for each in filled]
    series = [[each.mean_score or 0.0 for each in filled], [each.share_true or 0.0 for each in filled]]
    view = bars("Confidence calibration, by score", names, series)
    texts = [
        f"{score:.2f} / {share:.2f}, {format_count(each.num_detections)}"
        for score, share, each in zip(*series, filled, strict=True)
    ]
    return {
        "bars": _with_texts(view, texts),
        "names": ["mean score", "precision"],
        "expected_error": format_number(calibration.expected_error),
        "num_detections": format_count(calibration.num_detections),
    }


def error_view(candidate: ErrorCosts, baseline: ErrorCosts | None) -> Json:
    """Build bars and table of the costs of error types."""
    models = [candidate, *([baseline] if baseline else [])]
    series = [[max(each.cost_by_type[kind], 0.0) for kind in _ERROR_MEANINGS] for each in models]
    view = bars("Cost in points of AP50", [kind.value for kind in _ERROR_MEANINGS], series)
    texts = [" / ".join(f"{100 * each.cost_by_type[kind]:.1f}" for each in models) for kind in _ERROR_MEANINGS]
    rows = [
        {
            "name": kind.value,
            "meaning": meaning,
            "costs": [_points(each.cost_by_type[kind]) for each in models],
            "counts": [format_count(each.count_by_type[kind]) for each in models],
        }
        for kind, meaning in _ERROR_MEANINGS.items()
    ]
    totals = (
        ("all wrong detections", "Gain in AP50 without any false positive.", "false_positive_cost"),
        ("all undetected objects", "Gain in AP50 without any false negative.", "false_negative_cost"),
    )
    for name, meaning, field in totals:
        costs = [_points(getattr(each, field)) for each in models]
        rows.append({"name": name, "meaning": meaning, "costs": costs, "counts": [""] * len(models)})
    return {
        "bars": _with_texts(view, texts),
        "names": ["candidate", "baseline"][: len(models)],
        "rows": rows,
        "AP50": [_points(each.AP50) for each in models],
    }


def _points(value: float) -> str:
    """Format in points (hundredths); zero has no sign."""
    text = f"{100 * value:.1f}"
    return text if float(text) else "0.0"


def _with_texts(view: Json, texts: Sequence[str]) -> Json:
    rows = [{**row, "text": text} for row, text in zip(view["rows"], texts, strict=True)]
    return {**view, "rows": rows}


def confusion_view(confusion: Confusion) -> Json:
    """Build the confusion matrix, or for many classes a list of the most frequent confusions."""
    num_classes = len(confusion.class_names)
    missed = sum(row[-1] for row in confusion.counts[:-1])
    view: dict[str, Any] = {
        "num_missed": format_count(missed),
        "num_background": format_count(sum(confusion.counts[-1])),
        "matrix": None,
        "pairs": None,
    }
    if num_classes <= MAX_MATRIX_CLASSES:
        names = [_label(name) for name in confusion.class_names]
        rows = [
            _matrix_row(name, counts) for name, counts in zip([*names, "background"], confusion.counts, strict=True)
        ]
        rows[-1]["cells"][-1]["text"] = ""
        return {**view, "matrix": {"columns": [*names, "missed"], "rows": rows}}
    return {**view, "pairs": _confused_pairs(confusion)}


def _matrix_row(name: str, counts: Sequence[int]) -> dict[str, Any]:
    total = sum(counts) or 1
    cells = [
        {
            "text": format_count(count),
            "shade": _MAX_SHADE * count / total,
            "share": f"{format_share_digits(count / total)} %",
        }
        for count in counts
    ]
    return {"name": name, "cells": cells}


def _confused_pairs(confusion: Confusion) -> Json:
    names = confusion.class_names
    pairs = [
        (count, true, found)
        for true, row in enumerate(confusion.counts[:-1])
        for found, count in enumerate(row[:-1])
        if count and true != found
    ]
    rows = []
    for count, true, found in sorted(pairs, key=lambda pair: -pair[0])[:MAX_PAIRS]:
        share = count / sum(confusion.counts[true])
        share_cell = {"text": f"{format_share_digits(share)} %", "value": round(share, 6)}
        rows.append([name_cell(names[true]), name_cell(names[found]), number_cell(count, format_count), share_cell])
    columns = [
        {"title": "True class", "is_number": False},
        *columns_of("Detected class", "Objects", "Share of the true class"),
    ]
    return {"columns": columns, "rows": rows, "num_more": max(len(pairs) - MAX_PAIRS, 0)}


def training_charts(training: Mapping[str, Sequence[tuple[float, float]]]) -> Json:
    """Draw a chart for each curve with at least two finite points."""
    finite = {name: [point for point in points if all(map(math.isfinite, point))] for name, points in training.items()}
    drawn = {name: sorted(points) for name, points in finite.items() if len(points) > 1}
    charts = [
        {"title": name, "svg": _training_svg(name, points), "names": [name]}
        for name, points in list(drawn.items())[:_MAX_TRAINING_CHARTS]
    ]
    return {"charts": charts, "num_more": len(drawn) - len(charts)}


def _training_svg(name: str, points: Sequence[tuple[float, float]]) -> str:
    low, high = min(0.0, *(y for _, y in points)), max(0.0, *(y for _, y in points))
    first, last = min(0.0, points[0][0]), points[-1][0]
    return format_svg(
        name,
        "step",
        "",
        [Line(name=name, points=points)],
        x_range=(first, last if last > first else first + 1.0),
        y_range=(low, high if high > low else low + 1.0),
        look=PAGE_LOOK,
    )
