"""Write the outputs of an evaluation: metrics and detections as files, a self-contained report page, and the artifact
properties that the user interfaces of Kubeflow Pipelines and Vertex AI show.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from detloom.components.evaluator.analysis.average_precision import measure_pooled_curve
from detloom.components.evaluator.evaluation_result import EvaluationResult, ReportImage
from detloom.components.evaluator.measurements import Measurements
from detloom.components.evaluator.report.render_page import format_page
from detloom.components.storage.storage import open_storage
from detloom.schemas.contracts.arrays import BoolArray
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.contracts.metric_names import KEYPOINT, KEYPOINT_METRIC_NAMES, MASK, METRIC_NAMES
from detloom.trainer_module.evaluation.coco_images import (
    ImageGroundTruth,
    format_coco_ground_truth,
    format_coco_results,
)
from detloom.trainer_module.evaluation.matches import IOU_50

METRICS_FILE = "metrics.json"  # CocoMetrics of "candidate" and "baseline" (or null), and of "variants" by name; of
# detectors that have them, "masks" and "keypoints" with both
DECISION_FILE = "decision.json"  # BlessingDecision
ANALYSIS_FILE = "analysis.json"  # see `format_analysis`
GROUND_TRUTH_FILE = "ground_truth.json"  # COCO annotations; `file_name` is the source id, `features` are for slices
DETECTIONS_FILE = "detections.json"  # COCO results of the candidate, image ids as in GROUND_TRUTH_FILE
DETECTIONS_TABLE_FILE = "detections.parquet"  # the same with names, one row per detection
TENSORBOARD_FOLDER = "tensorboard"  # the main metrics as scalars at step 0, and the decision as text
PAGE_FILE = "report.html"
LOCK_FILE = ".evaluate.lock"  # held by the evaluation that writes into the folder

_IMAGES_AT_ONCE = 1000  # in memory as rows of COCO files
_MAX_UI_POINTS = 50  # per curve
_MAX_UI_CLASSES = 50  # all properties must fit into one message of at most 4 MB
_FLAGS = (("difficult", "is_difficult"), ("group_of", "is_group_of"))  # in the file, of ImageGroundTruth
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


def write_report(folder: str, evaluation: EvaluationResult, images: Sequence[ReportImage]) -> None:
    """Write the files into `folder`, which must exist; it may be on any file system that TensorFlow supports.

    The page is written last: if it exists, all other files exist.
    """
    candidate, baseline = evaluation.candidate, evaluation.baseline
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
        PAGE_FILE: format_page(evaluation, images).encode("utf-8", "replace"),
    }
    storage = open_storage(folder)
    storage.delete(PAGE_FILE)  # of an earlier evaluation; it exists only if all other files do
    storage.delete_tree(TENSORBOARD_FOLDER)
    _write_tensorboard(storage.address(TENSORBOARD_FOLDER), evaluation)
    # These grow with the data: a part of the images at a time.
    for name, pieces in (
        (GROUND_TRUTH_FILE, _ground_truth_pieces(evaluation)),
        (DETECTIONS_FILE, _list_pieces(row for rows in _results(evaluation) for row in rows)),
    ):
        with storage.open_to_write(name, sync=True) as file:
            for piece in pieces:
                file.write(piece.encode())
    with storage.open_to_write(DETECTIONS_TABLE_FILE, sync=True) as file:
        _write_table(file, _results(evaluation), evaluation)
    storage.replace_files(contents)


def _shape_metrics(evaluation: EvaluationResult) -> dict[str, Any]:
    """Return the metrics of `masks` and `keypoints` of both models, if the candidate has them."""
    found: dict[str, Any] = {}
    for name in ("masks", "keypoints"):
        candidate = getattr(evaluation.candidate, name)
        before = getattr(evaluation.baseline, name) if evaluation.baseline else None
        if candidate is not None:
            found[name] = {"candidate": candidate.to_dict(), "baseline": before.to_dict() if before else None}
    return found


def _write_tensorboard(folder: str, evaluation: EvaluationResult) -> None:
    writer = tf.summary.create_file_writer(folder)
    with writer.as_default(step=0):
        for name, value in metric_properties(evaluation).items():
            tf.summary.scalar(name, value)
        tf.summary.text("decision", evaluation.decision.sentence)
    writer.close()


def format_analysis(evaluation: EvaluationResult) -> dict[str, Any]:
    """Convert `Measurements` and `ModelCosts` of both models, the `Comparison` and `OtherForm` to JSON values."""
    baseline = evaluation.baseline
    return {
        "candidate": {**evaluation.candidate.to_dict(), "costs": asdict(evaluation.candidate_costs)},
        "baseline": {**baseline.to_dict(), "costs": asdict(evaluation.baseline_costs)} if baseline else None,
        "comparison": _format_comparison(evaluation),
        "other_form": asdict(evaluation.other_form) if evaluation.other_form else None,
    }


def _format_comparison(evaluation: EvaluationResult) -> dict[str, Any]:
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


def _ground_truth_pieces(evaluation: EvaluationResult) -> Iterator[str]:
    """Yield the JSON text of a COCO annotation file."""
    categories = _format_ground_truth(evaluation, 0, 0, 0, ())["categories"]
    flags = [
        (name, attribute)
        for name, attribute in _FLAGS
        if any(_flags(image, attribute).any() for image in evaluation.split.ground_truth)
    ]
    yield '{"info": {}'
    for key in ("images", "annotations"):
        yield f', "{key}": ['
        separator, num_annotations = "", 0
        for start in range(0, len(evaluation.split.ground_truth), _IMAGES_AT_ONCE):
            content = _format_ground_truth(evaluation, start, start + _IMAGES_AT_ONCE, num_annotations, flags)
            num_annotations += len(content["annotations"])
            for row in content[key]:
                yield separator + _json_text(row)
                separator = ", "
        yield "]"
    yield f', "categories": {_json_text(categories)}}}\n'


def _format_ground_truth(
    evaluation: EvaluationResult, start: int, stop: int, num_before: int, flags: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """Format the images from `start` to before `stop` like a COCO annotation file.

    Args:
        num_before: annotations of earlier images; ids go on from there.
        flags: names of flags in the file and of their attributes.
    """
    split, truth = evaluation.split, evaluation.split.ground_truth[start:stop]
    names_by_id = dict(zip((image.image_id for image in truth), evaluation.file_names[start:stop], strict=True))
    content = format_coco_ground_truth(truth, split.label_map, names_by_id)
    for category in content["categories"]:
        if split.keypoints is not None and category["name"] == split.keypoints.class_name:
            category |= {"keypoints": list(split.keypoints.names), "keypoint_sigmas": list(split.keypoints.sigmas)}
    for name, attribute in flags:
        values = np.concatenate([np.zeros(0, bool), *(_flags(image, attribute) for image in truth)])
        for row, value in zip(content["annotations"], values.tolist(), strict=True):
            row[name] = int(value)
    for row in content["annotations"]:
        row["id"] += num_before
    for image, features in zip(content["images"], split.features[start:stop], strict=True):
        if features:
            image["features"] = {key: list(values) for key, values in features.items()}
    return content


def _results(evaluation: EvaluationResult) -> Iterator[list[dict[str, Any]]]:
    """Yield the candidate's detections as rows of a COCO results file, for a part of the images at a time."""
    truth, found = evaluation.split.ground_truth, evaluation.detections
    for start in range(0, len(truth), _IMAGES_AT_ONCE):
        hw_by_id = {image.image_id: image.image_hw for image in truth[start : start + _IMAGES_AT_ONCE]}
        yield format_coco_results(found[start : start + _IMAGES_AT_ONCE], hw_by_id)


def _list_pieces(rows: Iterable[Any]) -> Iterator[str]:
    """Yield the JSON text of a list and a line break."""
    yield "["
    for number, row in enumerate(rows):
        yield (", " if number else "") + _json_text(row)
    yield "]\n"


def _flags(image: ImageGroundTruth, attribute: str) -> BoolArray:
    values = getattr(image, attribute)
    return np.zeros(len(image.class_ids), bool) if values is None else np.asarray(values, bool)


def _write_table(file: IO[bytes], results: Iterable[list[dict[str, Any]]], evaluation: EvaluationResult) -> None:
    """Write the detections as a Parquet file, with a row group for each part."""
    names_by_id = dict(
        zip((image.image_id for image in evaluation.split.ground_truth), evaluation.file_names, strict=True)
    )
    columns = {"segmentation": "mask_counts", "keypoints": "keypoints_yx_rel"}
    optional = {
        key: _OPTIONAL_COLUMNS[key]
        for key, attribute in columns.items()
        if any(getattr(image, attribute) is not None and len(image.scores) for image in evaluation.detections)
    }
    schema = pa.schema({**_TABLE_COLUMNS, **optional})
    with pq.ParquetWriter(file, schema) as writer:
        for rows in results:
            writer.write_table(_format_table(rows, names_by_id, evaluation.split.label_map, schema))


def _format_table(
    results: Sequence[dict[str, Any]], names_by_id: Mapping[int, str], label_map: LabelMap, schema: pa.Schema
) -> pa.Table:
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
    return pa.Table.from_pylist(rows, schema=schema)


def _format_json(value: Any) -> bytes:
    return (_json_text(value) + "\n").encode("utf-8")


def _json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def metric_properties(evaluation: EvaluationResult) -> dict[str, float]:
    """Return numbers by name for a `system.Metrics` artifact, without unmeasured ones and rare classes."""
    candidate, coco = evaluation.candidate, evaluation.candidate.coco
    numbers: dict[str, float] = {}
    for prefix, metrics, names in (
        ("", coco, METRIC_NAMES),
        (MASK, candidate.masks, METRIC_NAMES),
        (KEYPOINT, candidate.keypoints, KEYPOINT_METRIC_NAMES),
    ):
        if metrics is not None:
            numbers |= {f"{prefix}{name}": metrics.value_of(name) for name in names if metrics.explain(name) is None}
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
    curve = measure_pooled_curve(measured.matches, IOU_50)
    if not curve.num_truth or not len(curve.scores):
        return []
    rows = np.unique(np.linspace(0, len(curve.scores) - 1, _MAX_UI_POINTS).astype(int))
    columns = {
        "confidenceThreshold": curve.scores[rows],
        "recall": curve.recall[rows],
        "precision": curve.precision[rows],
        "falsePositiveRate": curve.num_false[rows] / (curve.num_true[rows] + curve.num_false[rows]),
    }
    return [dict(zip(columns, map(float, values), strict=True)) for values in zip(*columns.values(), strict=True)]


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
