"""Build the card's section about the evaluation."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from detloom.components.evaluator.gates import Gate
from detloom.components.evaluator.report.tables import MAX_ROWS, columns_of, name_cell, number_cell
from detloom.components.evaluator.report.views import format_mib, gate_rows, say_override
from detloom.components.model_card.render import Block, Facts, Heading, Table, Text
from detloom.components.pages.formats import (
    format_count,
    format_number,
    format_percent,
    format_share_digits,
    format_signed,
)
from detloom.schemas.contracts.metric_names import METRIC_NAMES
from detloom.schemas.run_file.evaluator_and_gates import Override

Json = Mapping[str, Any]

_DIFFERENCES = {
    "better": "significantly better than the baseline",
    "worse": "significantly worse than the baseline",
    "none": "no significant difference from the baseline",
}


def evaluation_blocks(card: Json) -> Iterator[Block]:
    evaluation = card["evaluation"]
    intervals = evaluation["intervals"]
    confidence = format_share_digits(intervals["confidence"])
    yield Text(
        f"COCO metrics on {format_count(evaluation['num_images'])} images with "
        f"{format_count(evaluation['num_boxes'])} boxes of the split '{evaluation['split']}'. Intervals are "
        f"{confidence} % bootstrap intervals over images ({format_count(intervals['num_resamples'])} resamples)."
    )
    yield _metrics_table(evaluation)
    for key, title in (("masks", "Masks"), ("keypoints", "Keypoints")):
        if evaluation.get(key):  # absent for detectors of boxes
            yield Heading(title)
            yield _shape_table(evaluation[key])
    yield Heading("Decision")
    yield from _decision_blocks(evaluation)
    yield Heading("Classes")
    yield _class_table(evaluation["per_class"], has_wanted=True)
    yield Text(_explain_points(card["wanted_precision"]), is_soft=True)
    if evaluation["slices"] or evaluation["object_slices"] or evaluation["sizes"]:
        yield Heading("Slices")
        yield from _slice_blocks(evaluation)
    else:
        yield Text("No slices were configured.", is_soft=True)
    yield Heading("Latency, size and calibration")
    yield Facts(_cost_rows(evaluation))


def _metrics_table(evaluation: Json) -> Table:
    has_baseline = any(metric["baseline"] is not None for metric in evaluation["metrics"].values())
    rows = []
    for name in METRIC_NAMES:
        metric = evaluation["metrics"][name]
        row = [name_cell(name), number_cell(metric["value"]), {"text": _format_ends(metric)}]
        if has_baseline:
            row += [number_cell(metric["baseline"]), number_cell(metric["change"], format_signed)]
        rows.append([*row, {"text": metric["meaning"]}])
    numbers = ("Value", "Interval", *(("Baseline", "Change") if has_baseline else ()))
    return Table([*columns_of("Metric", *numbers), {"title": "Meaning", "is_number": False}], rows)


def _shape_table(metrics: Sequence[Json]) -> Table:
    has_baseline = any(row["baseline"] is not None for row in metrics)
    rows = []
    for metric in metrics:
        row = [name_cell(metric["name"]), number_cell(metric["value"])]
        if has_baseline:
            row += [number_cell(metric["baseline"]), number_cell(metric["change"], format_signed)]
        rows.append([*row, {"text": metric["meaning"]}])
    numbers = ("Value", *(("Baseline", "Change") if has_baseline else ()))
    return Table([*columns_of("Metric", *numbers), {"title": "Meaning", "is_number": False}], rows)


def _decision_blocks(evaluation: Json) -> Iterator[Block]:
    decision = evaluation["decision"]
    if decision["override"]:
        yield Text(say_override(Override(**decision["override"])))
    if evaluation["comparison"]:
        change = evaluation["comparison"]["AP"]
        words = _DIFFERENCES.get(decision["difference"] or "", "")
        ends = f" ({_format_ends(change, format_signed)})" if change["low"] is not None else ""
        yield Text(
            f"Change of AP from the baseline: {format_signed(change['value'])}{ends}{f', {words}' if words else ''}."
        )
    else:
        reason = decision["baseline_problem"] or "there was none"
        yield Text(f"Not compared with a baseline: {reason}.")
    gates = gate_rows([Gate(**gate) for gate in decision["gates"]])
    if gates:
        rows = [
            [name_cell(gate["name"]), *({"text": gate[key]} for key in ("required", "measured", "verdict_text"))]
            for gate in gates
        ]
        yield Table([*columns_of("Gate", "Required", "Measured"), {"title": "Verdict", "is_number": False}], rows)
    else:
        yield Text("No gates were configured.")


def _class_table(classes: Sequence[Json], *, has_wanted: bool) -> Table:
    """Return one row per class; if there are too many, those with the most boxes."""
    shown = sorted(classes, key=lambda row: -row["num_boxes"])[:MAX_ROWS] if len(classes) > MAX_ROWS else classes
    rows = []
    for row in shown:
        best, wanted = row["best_f1"] or {}, row["wanted_precision"] or {}
        rows.append(
            [
                name_cell(row["name"]),
                number_cell(row["num_boxes"], format_count),
                number_cell(row["AP"]),
                {"text": _format_ends(row["AP_interval"])},
                *(number_cell(row[name]) for name in ("AP50", "AP75", "AR100")),
                *(number_cell(best.get(key)) for key in ("min_score", "precision", "recall")),
                *(number_cell(wanted.get(key)) for key in ("min_score", "recall")),
            ]
        )
    points = ("Best F1: score", "precision", "recall", "Wanted precision: score", "recall")
    columns = columns_of("Class", "Boxes", "AP", "AP interval", "AP50", "AP75", "AR100", *points)
    return Table(columns, rows, num_more=len(classes) - len(rows))


def _explain_points(wanted_precision: float | None) -> str:
    wanted = (
        "the wanted precision" if wanted_precision is None else f"a precision of {format_percent(wanted_precision)}"
    )
    return (
        "The scores are thresholds, measured at IoU 0.50: the threshold with the best F1, and the threshold with the "
        f"highest recall that reaches {wanted}. A dash means that nothing could be measured or that no threshold "
        "reaches it."
    )


def _slice_blocks(evaluation: Json) -> Iterator[Block]:
    if evaluation["slices"]:
        yield _table(
            evaluation["slices"], "Slice of images", {"num_images": "Images", "num_boxes": "Boxes"}, "few images"
        )
    if evaluation["object_slices"]:
        names = {"recall50": "Recall, IoU 0.50", "recall": "Recall, mean"}
        yield _table(evaluation["object_slices"], "Slice of objects", {"num_objects": "Objects"}, "few objects", names)
    if evaluation["sizes"]:
        rows = [
            [
                name_cell(row["name"]),
                {"text": f"{row['min_area_px'] ** 0.5:g} to {row['max_area_px'] ** 0.5:g} px"},
                number_cell(row["num_boxes"], format_count),
                *(number_cell(row[name]) for name in ("AP", "AP50", "AR100")),
            ]
            for row in evaluation["sizes"]
        ]
        yield Table(columns_of("Size", "Sides", "Boxes", "AP", "AP50", "AR100"), rows)


def _table(
    parts: Sequence[Json],
    title: str,
    counts: Mapping[str, str],
    small: str,
    numbers: Mapping[str, str] = {"AP": "AP", "AP50": "AP50", "AR100": "AR100"},
) -> Table:
    """Return one row per slice; small slices are marked."""
    rows = [
        [
            name_cell(each["name"]),
            *(number_cell(each[key], format_count) for key in counts),
            *(number_cell(each[key]) for key in numbers),
            name_cell(small if each["is_small"] else ""),
        ]
        for each in parts[:MAX_ROWS]
    ]
    columns = columns_of(title, *counts.values(), *numbers.values())
    return Table([*columns, {"title": "Note", "is_number": False}], rows, num_more=len(parts) - len(rows))


def _cost_rows(evaluation: Json) -> list[tuple[str, str]]:
    latency, size, error = (evaluation[key] for key in ("latency", "model_bytes", "calibration_error"))
    times = (
        f"median {latency['median_ms']:,.1f} ms, 95th percentile {latency['p95_ms']:,.1f} ms, "
        f"{format_count(latency['num_images'])} images"
        if latency
        else "not measured"
    )
    return [
        ("Latency of one image", times),
        ("Size of the SavedModel", "not measured" if size is None else format_mib(size)),
        ("Expected calibration error", "not measured" if error is None else format_number(error)),
    ]


def _format_ends(interval: Json, format_end: Any = format_number) -> str:
    if interval["low"] is None or interval["high"] is None:
        return "–"
    return f"{format_end(interval['low'])} to {format_end(interval['high'])}"
