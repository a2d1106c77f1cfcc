"""Read the quality of a model from the files of its evaluation."""

from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from detloom.components.evaluator.blessing import BlessingDecision
from detloom.components.evaluator.report.metric_tables import keypoint_rows, metric_rows
from detloom.components.evaluator.report.output_files import ANALYSIS_FILE, DECISION_FILE, METRICS_FILE
from detloom.components.evaluator.report.page_parts import change_of, measured
from detloom.components.model_card.read_files import reading_json
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.contracts.metric_names import KEYPOINT_METRIC_NAMES, METRIC_NAMES
from detloom.schemas.contracts.runtime_names import FORM_TITLES
from detloom.schemas.errors import InputError
from detloom.trainer_module.evaluation.coco_metrics import CocoMetrics
from detloom.trainer_module.evaluation.keypoint_metrics import KeypointMetrics

Json = Mapping[str, Any]

_NOT_MEASURED = {"value": None, "low": None, "high": None}


def read_evaluation(folder: str, label_map: LabelMap, split: str) -> dict[str, Any]:
    """Read everything that the card contains about quality; None replaces the COCO API's -1 and missing values.

    Returns:
        `metrics` (and `masks`, `keypoints`, if the model has them) by name, with the ends of their intervals if
        available, and the baseline's values; `variants` by name; `form`: the title of the evaluated form;
        `other_form`: None, or its `title`, `name`, `aps` and `latency`; `per_class`, `slices`, `object_slices`,
        `sizes`: rows; `comparison`: None without a baseline.

    Raises:
        InputError: if a file is missing or invalid, or if its classes differ from the model's.
    """
    with reading_json(f"{folder}/{METRICS_FILE}", "metrics of an evaluation") as numbers:
        candidate = CocoMetrics.from_dict(numbers["candidate"])
        baseline = _metrics_or_none(numbers["baseline"])
        rows, shapes = metric_rows(candidate, baseline), {}
        if masks := numbers.get("masks"):
            before = _metrics_or_none(masks["baseline"])
            shapes["masks"] = _by_name(metric_rows(CocoMetrics.from_dict(masks["candidate"]), before))
        if points := numbers.get("keypoints"):
            points_before = points["baseline"] and _keypoint_metrics(points["baseline"])
            shapes["keypoints"] = _by_name(keypoint_rows(_keypoint_metrics(points["candidate"]), points_before))
        variants = {name: _describe_variant(each, candidate) for name, each in numbers["variants"].items()}
        if tuple((row.class_id, row.name) for row in candidate.per_class) != label_map.names_by_id:
            raise InputError(
                f"{folder}/{METRICS_FILE}: its classes differ from the model's; give the evaluation of this model."
            )
    with reading_json(f"{folder}/{DECISION_FILE}", "an evaluation's decision") as content:
        decision = BlessingDecision.from_dict(content)
    with reading_json(f"{folder}/{ANALYSIS_FILE}", "an evaluation's analysis") as analysis:
        compared, details = analysis["comparison"], analysis["candidate"]
        latency, change = details["costs"]["latency"], compared["difference"]
        other = analysis.get("other_form")  # not in those of earlier versions
        return {
            "split": split,
            "num_images": candidate.num_images,
            "num_boxes": candidate.num_boxes,
            "metrics": _by_name(rows, compared["candidate"]),
            **shapes,
            "intervals": {key: compared["candidate"][key] for key in ("confidence", "num_resamples")},
            "best_f1": _describe_point(details["best_f1"]),
            "per_class": _describe_classes(candidate, analysis),
            "slices": [
                {key: each[key] for key in ("name", "is_small")}
                | {key: each["metrics"][key] for key in ("num_images", "num_boxes")}
                | {name: measured(each["metrics"][name]) for name in ("AP", "AP50", "AR100")}
                for each in details["slices"]
            ],
            "object_slices": [
                {key: each[key] for key in ("name", "num_objects", "recall50", "recall", "is_small")}
                for each in details["object_slices"]
            ],
            "sizes": [
                {**asdict(row), **{name: measured(getattr(row, name)) for name in ("AP", "AP50", "AR100")}}
                for row in candidate.per_size
            ],
            "comparison": change and {name: _interval(change[name]) for name in ("AP", "AP50")},
            "variants": variants,
            "form": decision.form_title,
            "other_form": other and {"title": FORM_TITLES[other["name"]], **other},
            "calibration_error": details["calibration"]["expected_error"],
            "latency": latency and {key: latency[key] for key in ("median_ms", "p95_ms", "num_images")},
            "model_bytes": details["costs"]["model_bytes"],
            "decision": {**decision.to_dict(), "sentence": decision.sentence},
        }


def _metrics_or_none(values: Json | None) -> CocoMetrics | None:
    return None if values is None else CocoMetrics.from_dict(values)


def _keypoint_metrics(values: Json) -> KeypointMetrics:
    return KeypointMetrics(**{name: values[name] for name in KEYPOINT_METRIC_NAMES})


def _describe_variant(values: Json, candidate: CocoMetrics) -> dict[str, float | None]:
    metrics = CocoMetrics.from_dict(values)
    AP = measured(metrics.AP)
    return {"AP": AP, "AP50": measured(metrics.AP50), "change": change_of(AP, measured(candidate.AP))}


def _by_name(rows: list[Json], intervals: Json = MappingProxyType({})) -> dict[str, dict[str, Any]]:
    """Return the rows of a table of metrics by name, with the ends of their intervals if there are any."""
    return {
        row["name"]: {
            **_interval(intervals.get(row["name"], _NOT_MEASURED)),
            "value": row["candidate"],
            **{key: row[key] for key in ("meaning", "baseline", "change")},
        }
        for row in rows
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


def _describe_point(point: Json | None) -> dict[str, float] | None:
    return None if point is None else {name: point[name] for name in ("min_score", "precision", "recall")}


def _interval(values: Json) -> dict[str, float | None]:
    return {name: values[name] for name in ("value", "low", "high")}
