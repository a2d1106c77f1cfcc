"""Write the outputs of an evaluation: metrics and detections as files, a self-contained report page, and the artifact
properties that the user interfaces of Kubeflow Pipelines and Vertex AI show.
"""

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from detloom.components.evaluator.analysis.average_precision import measure_curve
from detloom.components.evaluator.evaluation import Evaluation, ReportImage
from detloom.components.evaluator.measurements import Measurements
from detloom.components.evaluator.report.page import format_page
from detloom.components.storage.storage import open_storage
from detloom.schemas.contracts.metric_names import KEYPOINT, KEYPOINT_METRIC_NAMES, MASK, METRIC_NAMES
from detloom.trainer_module.evaluation.coco_images import (
    ImageGroundTruth,
    format_coco_ground_truth,
    format_coco_results,
)
from detloom.trainer_module.evaluation.matches import IOU_50

METRICS_FILE = "metrics.json"  # CocoMetrics of "candidate" and "baseline" (or null), and of "variants" by name; of
# detectors that have them, "masks" and "keypoints" with both
DECISION_FILE = "decision.json"  # Decision
ANALYSIS_FILE = "analysis.json"  # see `format_analysis`
GROUND_TRUTH_FILE = "ground_truth.json"  # COCO annotations; `file_name` is the source id, `features` are for slices
DETECTIONS_FILE = "detections.json"  # COCO results of the candidate, image ids as in GROUND_TRUTH_FILE
DETECTIONS_TABLE_FILE = "detections.parquet"  # the same with names, one row per detection
TENSORBOARD_FOLDER = "tensorboard"  # the main metrics as scalars at step 0, and the decision as text
PAGE_FILE = "report.html"
LOCK_FILE = ".evaluate.lock"  # held by the evaluation that writes into the folder

_MAX_UI_POINTS = 50  # per curve
_MAX_UI_CLASSES = 50  # all properties must fit into one message of at most 4 MB
_TABLE_COLUMNS = {
    "image_id": pa.int64(),
    "file_name": pa.string(),
    "category_id": pa.int64(),
    "category": pa.string(),
    **dict.fromkeys(("x", "y", "width", "height"), pa.float64()),  # pixels
    "score": pa.float64(),
}
_OPTIONAL_COLUMNS = {  # of detectors that return them, as in COCO results
    "segmentation": pa.struct({"size": pa.list_(pa.int64()), "counts": pa.string()}),
    "keypoints": pa.list_(pa.float64()),
}


def write_report(folder: str, evaluation: Evaluation, images: Sequence[ReportImage]) -> None:
    """Write the files into `folder`, which must exist; it may be on any file system that TensorFlow supports.

    The page is written last: if it exists, all other files exist.
    """
    candidate, baseline = evaluation.candidate, evaluation.baseline
    results = format_coco_results(
        evaluation.detections, {image.image_id: image.image_hw for image in evaluation.split.ground_truth}
    )
    contents = {
        METRICS_FILE: _format_json(
            {
                "candidate": candidate.coco.to_dict(),
                "baseline": baseline.coco.to_dict() if baseline else None,
                "variants": {name: metrics.to_dict() for name, metrics in evaluation.variants.items()},
                **_shape_metrics(evaluation),
            }
        ),
        DECISION_FILE: _format_json(evaluation.decision.to_dict()),
        ANALYSIS_FILE: _format_json(format_analysis(evaluation)),
        GROUND_TRUTH_FILE: _format_json(_format_ground_truth(evaluation)),
        DETECTIONS_FILE: _format_json(results),
        DETECTIONS_TABLE_FILE: _format_table(results, evaluation),
        PAGE_FILE: format_page(evaluation, images).encode("utf-8", "replace"),
    }
    storage = open_storage(folder)
    storage.delete(PAGE_FILE)  # of an earlier evaluation; it exists only if all other files do
    storage.delete_tree(TENSORBOARD_FOLDER)
    _write_tensorboard(storage.address(TENSORBOARD_FOLDER), evaluation)
    storage.replace_files(contents)


def _shape_metrics(evaluation: Evaluation) -> dict[str, Any]:
    """Return the metrics of `masks` and `keypoints` of both models, if the candidate has them."""
    found: dict[str, Any] = {}
    for name in ("masks", "keypoints"):
        candidate = getattr(evaluation.candidate, name)
        before = getattr(evaluation.baseline, name) if evaluation.baseline else None
        if candidate is not None:
            found[name] = {"candidate": candidate.to_dict(), "baseline": before.to_dict() if before else None}
    return found


def _write_tensorboard(folder: str, evaluation: Evaluation) -> None:
    writer = tf.summary.create_file_writer(folder)
    with writer.as_default(step=0):
        for name, value in metric_properties(evaluation).items():
            tf.summary.scalar(name, value)
        tf.summary.text("decision", evaluation.decision.sentence)
    writer.close()


def format_analysis(evaluation: Evaluation) -> dict[str, Any]:
    """Convert `Measurements` and `ModelCosts` of both models and the `Comparison` to JSON values."""
    baseline = evaluation.baseline
    return {
        "candidate": {**evaluation.candidate.to_dict(), "costs": asdict(evaluation.candidate_costs)},
        "baseline": {**baseline.to_dict(), "costs": asdict(evaluation.baseline_costs)} if baseline else None,
        "comparison": _format_comparison(evaluation),
    }


def _format_comparison(evaluation: Evaluation) -> dict[str, Any]:
    """Convert the comparison, with image ids as in the other files instead of positions."""
    comparison, truth = evaluation.comparison, evaluation.split.ground_truth
    changes = [
        {
            "image_id": truth[change.image_index].image_id,
            "gain": change.gain,
            "candidate": asdict(change.candidate),
            "baseline": asdict(change.baseline),
        }
        for change in comparison.changes
    ]
    return {**asdict(replace(comparison, changes=())), "changes": changes}


def _format_ground_truth(evaluation: Evaluation) -> dict[str, Any]:
    split = evaluation.split
    content = format_coco_ground_truth(split.ground_truth, split.label_map, _names_by_id(evaluation))
    for category in content["categories"]:
        if split.keypoints is not None and category["name"] == split.keypoints.class_name:
            category |= {"keypoints": list(split.keypoints.names), "keypoint_sigmas": list(split.keypoints.sigmas)}
    flags = [
        (name, np.concatenate([np.zeros(0, bool), *(_flags(image, attribute) for image in split.ground_truth)]))
        for name, attribute in (("difficult", "is_difficult"), ("group_of", "is_group_of"))
    ]
    for name, values in flags:
        if values.any():
            for row, value in zip(content["annotations"], values.tolist(), strict=True):
                row[name] = int(value)
    for image, features in zip(content["images"], split.features, strict=True):
        if features:
            image["features"] = {key: list(values) for key, values in features.items()}
    return content


def _flags(image: ImageGroundTruth, attribute: str) -> npt.NDArray[np.bool_]:
    values = getattr(image, attribute)
    return np.zeros(len(image.class_ids), bool) if values is None else np.asarray(values, bool)


def _format_table(results: Sequence[dict[str, Any]], evaluation: Evaluation) -> bytes:
    names_by_id, label_map = _names_by_id(evaluation), evaluation.split.label_map
    rows = [
        {
            "image_id": row["image_id"],
            "file_name": names_by_id[row["image_id"]],
            "category_id": row["category_id"],
            "category": label_map.name_of(row["category_id"]),
            **dict(zip(("x", "y", "width", "height"), row["bbox"], strict=True)),
            "score": row["score"],
            **{key: row[key] for key in _OPTIONAL_COLUMNS if key in row},
        }
        for row in results
    ]
    found = {key: kind for key, kind in _OPTIONAL_COLUMNS.items() if any(key in row for row in rows)}
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema({**_TABLE_COLUMNS, **found})), file)
    return file.getvalue()


def _names_by_id(evaluation: Evaluation) -> dict[int, str]:
    images = evaluation.split.ground_truth
    return {image.image_id: name for image, name in zip(images, evaluation.file_names, strict=True)}


def _format_json(value: Any) -> bytes:
    return (json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")


def metric_properties(evaluation: Evaluation) -> dict[str, float]:
    """Return numbers by name for a `system.Metrics` artifact, without unmeasured ones and rare classes."""
    coco = evaluation.candidate.coco
    numbers = {name: coco.value_of(name) for name in METRIC_NAMES if coco.explain(name) is None}
    masks, keypoints = evaluation.candidate.masks, evaluation.candidate.keypoints
    if masks is not None:
        numbers |= {f"{MASK}{name}": masks.value_of(name) for name in METRIC_NAMES if masks.explain(name) is None}
    if keypoints is not None:
        measured = [name for name in KEYPOINT_METRIC_NAMES if keypoints.explain(name) is None]
        numbers |= {f"{KEYPOINT}{name}": keypoints.value_of(name) for name in measured}
    shown = sorted(coco.per_class, key=lambda row: -row.num_boxes)[:_MAX_UI_CLASSES]
    numbers |= {f"AP/{row.name}": row.AP for row in shown if row.num_boxes}
    change = evaluation.comparison.ap_change
    if change is not None and change.value is not None:
        numbers["AP change"] = change.value
    latency = evaluation.candidate_costs.latency
    if latency is not None:
        numbers["median latency ms"] = latency.median_ms
    return {**numbers, "blessed": float(evaluation.decision.blessed)}


def confidence_metrics(measured: Measurements) -> list[dict[str, float]]:
    """Return `confidenceMetrics` for a `system.ClassificationMetrics` artifact, over all classes at IoU 0.50.

    The field is defined for classification; here `falsePositiveRate` is the share of false positives among detections.
    """
    num_true, num_false, scores, num_truth = _pooled(measured)
    if not num_truth or not len(scores):
        return []
    rows = np.unique(np.linspace(0, len(scores) - 1, _MAX_UI_POINTS).astype(int))
    return [
        {
            "confidenceThreshold": float(scores[row]),
            "recall": float(num_true[row] / num_truth),
            "precision": float(num_true[row] / (num_true[row] + num_false[row])),
            "falsePositiveRate": float(num_false[row] / (num_true[row] + num_false[row])),
        }
        for row in rows
    ]


def confusion_matrix(measured: Measurements) -> dict[str, object]:
    """Return `confusionMatrix` for a `system.ClassificationMetrics` artifact: frequent classes and background."""
    confusion = measured.confusion
    counts = np.array(confusion.counts)
    frequent = np.argsort(-counts[:-1].sum(axis=1), kind="stable")[:_MAX_UI_CLASSES]
    shown = [*np.sort(frequent).tolist(), len(confusion.class_names)]
    names = [*confusion.class_names, "background"]
    return {
        "annotationSpecs": [{"displayName": names[k]} for k in shown],
        "rows": [{"row": list(map(float, row))} for row in counts[np.ix_(shown, shown)].tolist()],
    }


def _pooled(measured: Measurements) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Return cumulative true and false positives over all classes by descending score, the scores, and the objects."""
    curves = [measure_curve(measured.matches, k, IOU_50) for k in range(measured.matches.num_classes)]
    scores = np.concatenate([np.zeros(0), *(curve.scores for curve in curves)])
    true = np.concatenate([np.zeros(0), *(np.diff(curve.num_true, prepend=0) for curve in curves)])
    false = np.concatenate([np.zeros(0), *(np.diff(curve.num_false, prepend=0) for curve in curves)])
    order = np.argsort(-scores, kind="stable")
    return np.cumsum(true[order]), np.cumsum(false[order]), scores[order], sum(curve.num_truth for curve in curves)
