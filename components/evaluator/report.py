"""What an evaluation leaves behind: numbers and detections for machines, one self-contained page for people."""

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

from detloom.components.evaluator.evaluation import Evaluation, Picture
from detloom.components.evaluator.report_page import format_page
from detloom.components.evaluator.ui_artifacts import metric_properties
from detloom.trainer_module.coco_metrics import ImageGroundTruth, format_coco_ground_truth, format_coco_results

METRICS_FILE = "metrics.json"  # CocoMetrics of "candidate" and "baseline" (or null), and of "variants" by name
DECISION_FILE = "decision.json"  # Decision
ANALYSIS_FILE = "analysis.json"  # what `format_analysis` says
GROUND_TRUTH_FILE = "ground_truth.json"  # COCO annotations; `file_name` is the source id, `features` what slices go by
DETECTIONS_FILE = "detections.json"  # COCO results of the candidate, image ids as in GROUND_TRUTH_FILE
DETECTIONS_TABLE_FILE = "detections.parquet"  # the same with names, a row a detection
TENSORBOARD_FOLDER = "tensorboard"  # the main numbers as scalars at step 0, and the decision as text
PAGE_FILE = "report.html"

_TABLE_SCHEMA = pa.schema(
    [
        ("image_id", pa.int64()),
        ("file_name", pa.string()),
        ("category_id", pa.int64()),
        ("category", pa.string()),
        *((side, pa.float64()) for side in ("x", "y", "width", "height")),  # pixels
        ("score", pa.float64()),
    ]
)


def write_report(folder: str, evaluation: Evaluation, pictures: Sequence[Picture]) -> None:
    """Write the files into `folder`, which exists; it may be on any file system that TensorFlow knows.

    The page comes last: where it is, the others are.
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
            }
        ),
        DECISION_FILE: _format_json(evaluation.decision.to_dict()),
        ANALYSIS_FILE: _format_json(format_analysis(evaluation)),
        GROUND_TRUTH_FILE: _format_json(_format_ground_truth(evaluation)),
        DETECTIONS_FILE: _format_json(results),
        DETECTIONS_TABLE_FILE: _format_table(results, evaluation),
        PAGE_FILE: format_page(evaluation, pictures).encode("utf-8", "replace"),
    }
    for name in reversed(contents):  # of an evaluation before, the page first
        if tf.io.gfile.exists(f"{folder}/{name}"):
            tf.io.gfile.remove(f"{folder}/{name}")
    _write_tensorboard(f"{folder}/{TENSORBOARD_FOLDER}", evaluation)
    for name, content in contents.items():
        with tf.io.gfile.GFile(f"{folder}/{name}", "wb") as file:
            file.write(content)


def _write_tensorboard(folder: str, evaluation: Evaluation) -> None:
    if tf.io.gfile.exists(folder):
        tf.io.gfile.rmtree(folder)
    writer = tf.summary.create_file_writer(folder)
    with writer.as_default(step=0):
        for name, value in metric_properties(evaluation).items():
            tf.summary.scalar(name, value)
        tf.summary.text("decision", evaluation.decision.sentence)
    writer.close()


def format_analysis(evaluation: Evaluation) -> dict[str, Any]:
    """Every number as plain JSON values: `Measurements` and `ModelCosts` of both models, and the `Comparison`."""
    baseline = evaluation.baseline
    return {
        "candidate": {**evaluation.candidate.to_dict(), "costs": asdict(evaluation.candidate_costs)},
        "baseline": {**baseline.to_dict(), "costs": asdict(evaluation.baseline_costs)} if baseline else None,
        "comparison": _format_comparison(evaluation),
    }


def _format_comparison(evaluation: Evaluation) -> dict[str, Any]:
    """Images by their id, as in the other files, and not by their position."""
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
        }
        for row in results
    ]
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=_TABLE_SCHEMA), file)
    return file.getvalue()


def _names_by_id(evaluation: Evaluation) -> dict[int, str]:
    images = evaluation.split.ground_truth
    return {image.image_id: name for image, name in zip(images, evaluation.file_names, strict=True)}


def _format_json(value: Any) -> bytes:
    return (json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")
