"""The charts of precision over recall, and the bars of the confidence calibration."""

from collections.abc import Mapping, Sequence

from detloom.components.evaluator.analysis.confidence_calibration import Calibration
from detloom.components.evaluator.measurements import ClassCurve
from detloom.components.evaluator.report.page_parts import Json, short_label, with_most_boxes, with_texts
from detloom.components.pages.charts import PAGE_LOOK, Line, bars, format_svg
from detloom.components.pages.formats import format_count, format_number

MAX_CURVES = 12
_CURVES_PER_CHART = len(PAGE_LOOK.line_colors)


def curve_charts(curves: Sequence[ClassCurve], num_boxes_by_id: Mapping[int, int]) -> Json:
    """Draw precision over recall at IoU 0.50 of the classes with the most boxes; one curve per colour in a chart."""
    measured = [curve for curve in curves if curve.precision50]
    largest = with_most_boxes(measured, num_boxes_by_id, MAX_CURVES)
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
        charts.append({"title": title, "svg": svg, "names": [short_label(curve.name) for curve in part]})
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
        "bars": with_texts(view, texts),
        "names": ["mean score", "precision"],
        "expected_error": format_number(calibration.expected_error),
        "num_detections": format_count(calibration.num_detections),
    }
