"""The confusion matrix of the page, or for many classes a list of the most frequent confusions."""

from collections.abc import Sequence
from typing import Any

from detloom.components.evaluator.analysis.confusion import Confusion
from detloom.components.evaluator.report.page_parts import Json, columns_of, name_cell, number_cell, short_label
from detloom.components.pages.formats import format_count, format_share_digits

MAX_MATRIX_CLASSES = 15
MAX_PAIRS = 15
_MAX_SHADE = 0.55  # opacity at which text is still readable in light and dark mode


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
        names = [short_label(name) for name in confusion.class_names]
        totals = [sum(counts) for counts in confusion.counts]
        totals[-1] = max(totals)  # the few detections of background are not as dark as the many of a class
        rows = [
            _matrix_row(name, counts, total or 1)
            for name, counts, total in zip([*names, "background"], confusion.counts, totals, strict=True)
        ]
        rows[-1]["cells"][-1]["text"] = ""
        return {**view, "matrix": {"columns": [*names, "missed"], "rows": rows}}
    return {**view, "pairs": _confused_pairs(confusion)}


def _matrix_row(name: str, counts: Sequence[int], darkest: int) -> dict[str, Any]:
    total = sum(counts) or 1
    cells = [
        {
            "text": format_count(count),
            "shade": _MAX_SHADE * count / darkest,
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
