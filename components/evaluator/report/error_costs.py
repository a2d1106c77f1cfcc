"""The costs of the error types: bars and a table."""

from detloom.components.evaluator.analysis.error_types import ErrorCosts, ErrorType
from detloom.components.evaluator.report.page_parts import Json, with_texts
from detloom.components.pages.charts import bars
from detloom.components.pages.formats import format_count

_ERROR_MEANINGS = {
    ErrorType.LOCALIZATION: "Correct class, poorly localized (IoU 0.1 to 0.5).",
    ErrorType.CLASSIFICATION: "Well localized (IoU at least 0.5), wrong class.",
    ErrorType.BOTH: "Wrong class and poorly localized.",
    ErrorType.DUPLICATE: "The object already has a detection with a higher score.",
    ErrorType.BACKGROUND: "No labelled object (IoU at most 0.1).",
    ErrorType.MISSED: "Unmatched ground truth without a localization or classification error.",
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
        "bars": with_texts(view, texts),
        "names": ["candidate", "baseline"][: len(models)],
        "rows": rows,
        "AP50": [_points(each.AP50) for each in models],
    }


def _points(value: float) -> str:
    """Format in points (hundredths); zero has no sign."""
    text = f"{100 * value:.1f}"
    return text if float(text) else "0.0"
