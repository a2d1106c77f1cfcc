"""Read the quality of a model from the files of its evaluation."""

import typing
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from detloom.components.evaluator.blessing import BlessingDecision
from detloom.components.evaluator.gates import Verdict
from detloom.components.evaluator.report.output_files import ANALYSIS_FILE, DECISION_FILE, METRICS_FILE
from detloom.components.evaluator.report.tables import measured
from detloom.components.evaluator.report.views import keypoint_rows, metric_rows
from detloom.components.model_card.read_files import count, number, number_or_none, read_json, reading, text
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.contracts.metric_names import KEYPOINT_METRIC_NAMES, METRIC_NAMES
from detloom.schemas.errors import InputError
from detloom.trainer_module.evaluation.coco_metrics import CocoMetrics, CocoNumbers
from detloom.trainer_module.evaluation.keypoint_metrics import KeypointMetrics

Json = Mapping[str, Any]

_METRICS, _ANALYSIS, _DECISION = "metrics of an evaluation", "an evaluation's analysis", "an evaluation's decision"
_NOT_MEASURED = {"value": None, "low": None, "high": None}


def read_evaluation(folder: str, label_map: LabelMap, split: str) -> dict[str, Any]:
    """Read everything that the card contains about quality; None replaces the COCO API's -1 and missing values.

    Returns:
        `metrics` by name, with the ends of their intervals if available, and the baseline's values; `per_class`,
        `slices`, `object_slices`, `sizes`, `variants`: rows; `comparison`: None without a baseline.

    Raises:
        InputError: if a file is missing or invalid, or if its classes differ from the model's.
    """
    numbers = read_json(f"{folder}/{METRICS_FILE}", _METRICS)
    with reading(f"{folder}/{METRICS_FILE}", _METRICS):
        candidate = _read_metrics(numbers["candidate"])
        baseline = _read_metrics(numbers["baseline"]) if numbers["baseline"] is not None else None
        variants = {text(name): _read_metrics(each) for name, each in numbers["variants"].items()}
        shapes = _describe_shapes(numbers)
    _check_classes(candidate, label_map, folder)
    decision = read_json(f"{folder}/{DECISION_FILE}", _DECISION)
    with reading(f"{folder}/{DECISION_FILE}", _DECISION):
        decision = _read_decision(decision)
    analysis = read_json(f"{folder}/{ANALYSIS_FILE}", _ANALYSIS)
    with reading(f"{folder}/{ANALYSIS_FILE}", _ANALYSIS):
        return {
            "split": split,
            "num_images": candidate.num_images,
            "num_boxes": candidate.num_boxes,
            "metrics": _describe_metrics(candidate, baseline, analysis["comparison"]["candidate"]),
            "intervals": {
                "confidence": number(analysis["comparison"]["candidate"]["confidence"]),
                "num_resamples": count(analysis["comparison"]["candidate"]["num_resamples"]),
            },
            "best_f1": _describe_point(analysis["candidate"].get("best_f1")),  # earlier versions have none
            "per_class": _describe_classes(candidate, analysis),
            **_describe_parts(candidate, analysis["candidate"]),
            "comparison": _describe_comparison(analysis["comparison"]["difference"]),
            "variants": [
                {"name": name, "AP": measured(each.AP), "AP50": measured(each.AP50)} for name, each in variants.items()
            ],
            "calibration_error": number_or_none(analysis["candidate"]["calibration"]["expected_error"]),
            "latency": _describe_latency(analysis["candidate"]["costs"]["latency"]),
            "model_bytes": number_or_none(analysis["candidate"]["costs"]["model_bytes"]),
            "decision": decision,
            **shapes,
        }


def _describe_shapes(numbers: Json) -> dict[str, list[dict[str, Any]]]:
    """Return rows with the metrics of `masks` and `keypoints`, if the model has them."""
    found = {}
    if masks := numbers.get("masks"):
        before = None if masks["baseline"] is None else _read_metrics(masks["baseline"])
        found["masks"] = metric_rows(_read_metrics(masks["candidate"]), before)
    if points := numbers.get("keypoints"):
        points_before = None if points["baseline"] is None else _read_keypoint_metrics(points["baseline"])
        found["keypoints"] = keypoint_rows(_read_keypoint_metrics(points["candidate"]), points_before)
    kept = ("name", "meaning", "baseline", "change")
    return {
        kind: [{**{key: row[key] for key in kept}, "value": row["candidate"]} for row in rows]
        for kind, rows in found.items()
    }


def _read_keypoint_metrics(values: Json) -> KeypointMetrics:
    return KeypointMetrics(**{name: number(values[name]) for name in KEYPOINT_METRIC_NAMES})


def _read_metrics(values: Json) -> CocoMetrics:
    """Read metrics and check the types of all values."""
    metrics = CocoMetrics.from_dict(values)
    numbers: tuple[CocoNumbers, ...] = (metrics, *metrics.per_class)
    for row in numbers:
        for name in METRIC_NAMES:
            number(row.value_of(name))
    for each in metrics.per_class:
        count(each.class_id), text(each.name), count(each.num_boxes)
    for size in metrics.per_size:
        text(size.name)
        for value in (size.min_area_px, size.max_area_px, size.AP, size.AP50, size.AR100, size.num_boxes):
            number(value)
    count(metrics.num_images), count(metrics.num_boxes)
    return metrics


def _read_decision(values: Json) -> dict[str, Any]:
    decision = BlessingDecision.from_dict(values)
    for gate in decision.gates:
        text(gate.name), text(gate.sentence), number_or_none(gate.value), number_or_none(gate.threshold)
        if gate.verdict not in typing.get_args(Verdict):
            raise ValueError(f"got the verdict {gate.verdict!r}")
    if decision.override is not None:
        for part in (decision.override.by, decision.override.reason, decision.override.until):
            text(part)
    text(decision.reason), text(decision.baseline_problem or "")
    if decision.difference not in (None, "better", "worse", "none"):
        raise ValueError(f"got the difference {decision.difference!r}")
    return {**decision.to_dict(), "blessed": bool(decision.blessed), "sentence": decision.sentence}


def _check_classes(metrics: CocoMetrics, label_map: LabelMap, folder: str) -> None:
    found = tuple((row.class_id, row.name) for row in metrics.per_class)
    if found != label_map.names_by_id:
        raise InputError(
            f"{folder}/{METRICS_FILE}: its classes differ from the model's; give the evaluation of this model."
        )


def _describe_metrics(candidate: CocoMetrics, baseline: CocoMetrics | None, resampled: Json) -> dict[str, Any]:
    rows = {row["name"]: row for row in metric_rows(candidate, baseline)}
    return {
        name: {
            **(_interval(resampled[name]) if name in ("AP", "AP50") else _NOT_MEASURED),
            "value": measured(candidate.value_of(name)),
            "meaning": row["meaning"],
            "baseline": row["baseline"],
            "change": row["change"],
        }
        for name, row in rows.items()
    }


def _describe_classes(candidate: CocoMetrics, analysis: Json) -> list[dict[str, Any]]:
    intervals = {row["class_id"]: _interval(row["AP"]) for row in analysis["comparison"]["candidate"]["per_class"]}
    curves = {row["class_id"]: row for row in analysis["candidate"]["curves"]}
    return [
        {
            "id": row.class_id,
            "name": row.name,
            "num_boxes": row.num_boxes,
            **{name: measured(row.value_of(name)) for name in METRIC_NAMES},
            "AP_interval": intervals.get(row.class_id, _NOT_MEASURED),
            "best_f1": _describe_point(curves.get(row.class_id, {}).get("best_f1")),
            "wanted_precision": _describe_point(curves.get(row.class_id, {}).get("wanted")),
        }
        for row in candidate.per_class
    ]


def _describe_parts(candidate: CocoMetrics, analysis: Json) -> dict[str, Any]:
    slices = [
        {
            "name": text(each["name"]),
            "num_images": count(each["metrics"]["num_images"]),
            "num_boxes": count(each["metrics"]["num_boxes"]),
            **{name: measured(number(each["metrics"][name])) for name in ("AP", "AP50", "AR100")},
            "is_small": bool(each["is_small"]),
        }
        for each in analysis["slices"]
    ]
    objects = [
        {
            "name": text(each["name"]),
            "num_objects": count(each["num_objects"]),
            "recall50": number_or_none(each["recall50"]),
            "recall": number_or_none(each["recall"]),
            "is_small": bool(each["is_small"]),
        }
        for each in analysis["object_slices"]
    ]
    sizes = [
        {**asdict(row), **{name: measured(getattr(row, name)) for name in ("AP", "AP50", "AR100")}}
        for row in candidate.per_size
    ]
    return {"slices": slices, "object_slices": objects, "sizes": sizes}


def _describe_point(point: Json | None) -> dict[str, float] | None:
    return None if point is None else {name: number(point[name]) for name in ("min_score", "precision", "recall")}


def _describe_comparison(difference: Json | None) -> dict[str, Any] | None:
    return None if difference is None else {name: _interval(difference[name]) for name in ("AP", "AP50")}


def _describe_latency(latency: Json | None) -> dict[str, Any] | None:
    if latency is None:
        return None
    return {
        "median_ms": number(latency["median_ms"]),
        "p95_ms": number(latency["p95_ms"]),
        "num_images": count(latency["num_images"]),
    }


def _interval(values: Json) -> dict[str, float | None]:
    return {name: number_or_none(values[name]) for name in ("value", "low", "high")}
