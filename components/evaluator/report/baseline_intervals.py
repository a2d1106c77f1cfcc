"""The change of AP against the baseline with its intervals: a chart and a table."""

from collections.abc import Callable, Mapping, Sequence

from detloom.components.evaluator.analysis.bootstrap import Interval
from detloom.components.evaluator.baseline_comparison import Comparison
from detloom.components.evaluator.report.page_parts import (
    MAX_ROWS,
    Json,
    columns_of,
    format_interval,
    name_cell,
    number_cell,
    short_label,
    with_most_boxes,
)
from detloom.components.pages.charts import svg_text, ticks
from detloom.components.pages.formats import format_number, format_share_digits, format_signed

_MAX_INTERVALS = 30  # classes in the chart; the table has all


def interval_view(comparison: Comparison, num_boxes_by_id: Mapping[int, int]) -> Json | None:
    """Build chart and table of the change of AP, overall and by class; None without a baseline."""
    difference, baseline, compared = comparison.difference, comparison.baseline, comparison.compared
    if difference is None or baseline is None or compared is None:
        return None
    is_all = len(compared.per_class) == len(comparison.candidate.per_class)
    title = "All classes" if is_all else "Classes of both"
    overall = (title, compared.AP, baseline.AP, difference.AP)
    parts = list(zip(compared.per_class, baseline.per_class, difference.per_class, strict=True))
    parts = parts if len(parts) > 1 else []  # a single class would repeat the first row
    measured = [change for *_, change in parts if change.AP.value is not None]
    if len(measured) > _MAX_INTERVALS:
        measured = with_most_boxes(measured, num_boxes_by_id, _MAX_INTERVALS)
    rows = [_interval_cells(first.name, first.AP, second.AP, change.AP) for first, second, change in parts[:MAX_ROWS]]
    return {
        "svg": format_intervals([(title, difference.AP), *((each.name, each.AP) for each in measured)]),
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
        parts.append(svg_text(across(value), bottom + 16, f"{value:+g}" if value else "0", "middle"))
    parts.append(_vertical(across(0.0), top, bottom, "var(--soft)", ' stroke-width="1.5"'))
    parts.append(svg_text((left + width - right) / 2, bottom + 34, "change of AP", "middle"))
    for number, (name, interval) in enumerate(rows):
        middle = top + row_height * (number + 0.5)
        weight = 'font-weight="bold"' if number == 0 else ""
        parts.append(svg_text(left - 10, middle + 4, short_label(name), "end", weight))
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
