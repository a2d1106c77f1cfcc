"""What an evaluation leaves behind: numbers and detections for machines, one self-contained page for people."""

import base64
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from PIL import Image

from detloom.components.evaluator.decision import Decision
from detloom.schemas.label_map import LabelMap
from detloom.schemas.metric_names import METRIC_NAMES
from detloom.trainer_module.coco_metrics import (
    CocoMetrics,
    ImageDetections,
    ImageGroundTruth,
    format_coco_ground_truth,
    format_coco_results,
)
from detloom.trainer_module.draw import draw_detections

METRICS_FILE = "metrics.json"  # {"candidate": CocoMetrics, "baseline": CocoMetrics or null}
DECISION_FILE = "decision.json"  # Decision
GROUND_TRUTH_FILE = "ground_truth.json"  # COCO annotations; `file_name` is the source id
DETECTIONS_FILE = "detections.json"  # COCO results of the candidate, image ids as in GROUND_TRUTH_FILE
PAGE_FILE = "report.html"

PICTURE_MIN_SCORE = 0.5  # fainter detections are not drawn
_PICTURE_SIDE_PX = 480  # two beside each other fill a usual page; 12 pairs stay below 2 MB
_JPEG_QUALITY = 80
_METRIC_MEANINGS = {
    "AP": "mean over IoU 0.50 to 0.95",
    "AP50": "IoU 0.50",
    "AP75": "IoU 0.75",
    "APs": "small, below 32 × 32 px",
    "APm": "medium",
    "APl": "large, above 96 × 96 px",
    "AR1": "recall, 1 detection an image and class",
    "AR10": "recall, 10 detections",
    "AR100": "recall, 100 detections",
    "ARs": "recall, small",
    "ARm": "recall, medium",
    "ARl": "recall, large",
}


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Everything that is reported.

    Attributes:
        file_names: source id by image id.
        baseline: None when there is none, or none that can be compared.
        lines: facts about the run as (name, value), shown below the decision.
    """

    label_map: LabelMap
    ground_truth: Sequence[ImageGroundTruth]
    detections: Sequence[ImageDetections]
    file_names: dict[int, str]
    candidate: CocoMetrics
    baseline: CocoMetrics | None
    decision: Decision
    lines: Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One image of the page; `truth_uri` and `found_uri` are JPEG data URIs."""

    name: str
    truth_uri: str
    found_uri: str
    num_truth: int
    num_found: int


def write_report(folder: str, evaluation: Evaluation, pictures: Sequence[Picture]) -> None:
    """Write the five files into `folder`, which exists; it may be on any file system that TensorFlow knows."""
    hw_by_id = {image.image_id: image.image_hw for image in evaluation.ground_truth}
    baseline = evaluation.baseline
    metrics = {"candidate": evaluation.candidate.to_dict(), "baseline": baseline.to_dict() if baseline else None}
    truth = format_coco_ground_truth(evaluation.ground_truth, evaluation.label_map, evaluation.file_names)
    contents = {
        METRICS_FILE: _format_json(metrics),
        DECISION_FILE: _format_json(evaluation.decision.to_dict()),
        GROUND_TRUTH_FILE: _format_json(truth),
        DETECTIONS_FILE: _format_json(format_coco_results(evaluation.detections, hw_by_id)),
        PAGE_FILE: format_page(evaluation, pictures),
    }
    for name, text in contents.items():
        with tf.io.gfile.GFile(f"{folder}/{name}", "w") as file:
            file.write(text)


def draw_picture(
    image_rgb: npt.NDArray[np.uint8],
    name: str,
    truth: ImageGroundTruth,
    found: ImageDetections,
    label_map: LabelMap,
) -> Picture:
    """Ground truth and detections of one image, each on a small copy of it."""
    small = Image.fromarray(image_rgb)
    small.thumbnail((_PICTURE_SIDE_PX, _PICTURE_SIDE_PX))
    small_rgb = np.asarray(small)
    keep = found.scores >= PICTURE_MIN_SCORE
    truth_picture = draw_detections(
        small_rgb, truth.boxes_yxyx_rel, truth.class_ids, _class_names(truth.class_ids, label_map)
    )
    found_picture = draw_detections(
        small_rgb,
        found.boxes_yxyx_rel[keep],
        found.class_ids[keep],
        _class_names(found.class_ids[keep], label_map),
        found.scores[keep],
    )
    return Picture(
        name=name,
        truth_uri=_jpeg_data_uri(truth_picture),
        found_uri=_jpeg_data_uri(found_picture),
        num_truth=len(truth.class_ids),
        num_found=int(np.count_nonzero(keep)),
    )


def format_page(evaluation: Evaluation, pictures: Sequence[Picture]) -> str:
    """The page; it needs no network and no script."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters["number"] = lambda value: "–" if value is None else f"{value:.3f}"
    environment.filters["signed"] = lambda value: "–" if value is None else f"{value:+.3f}"
    template = environment.from_string(Path(__file__).with_name("report.html.j2").read_text(encoding="utf-8"))
    candidate, baseline = evaluation.candidate, evaluation.baseline
    return template.render(
        decision=evaluation.decision,
        lines=evaluation.lines,
        metric_rows=[_metric_row(name, candidate, baseline) for name in METRIC_NAMES],
        class_rows=_class_rows(candidate, baseline),
        has_baseline=baseline is not None,
        has_unmeasured=any(candidate.explain(name) for name in METRIC_NAMES),
        pictures=pictures,
        picture_min_score=PICTURE_MIN_SCORE,
    )


def _metric_row(name: str, candidate: CocoMetrics, baseline: CocoMetrics | None) -> dict[str, Any]:
    why_not = candidate.explain(name)
    value = candidate.value_of(name)
    before = baseline.value_of(name) if baseline else None
    return {
        "name": name,
        "meaning": _METRIC_MEANINGS[name],
        "why_not": why_not,
        "candidate": None if why_not else value,
        "baseline": None if why_not else before,
        "change": None if why_not or before is None else value - before,
    }


def _class_rows(candidate: CocoMetrics, baseline: CocoMetrics | None) -> list[dict[str, Any]]:
    before_by_id = {row.class_id: row for row in baseline.per_class} if baseline else {}
    rows = []
    for row in candidate.per_class:
        before = before_by_id.get(row.class_id)
        values = {"AP": row.AP, "AP50": row.AP50, "AR100": row.AR100} if row.num_boxes else {}
        change = row.AP - before.AP if before and row.num_boxes else None
        rows.append({"name": row.name, "num_boxes": row.num_boxes, "change": change, "values": values})
    return rows


def _class_names(class_ids: Iterable[Any], label_map: LabelMap) -> list[str]:
    return [label_map.name_of(int(class_id)) for class_id in class_ids]


def _format_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"


def _jpeg_data_uri(picture: Image.Image) -> str:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=_JPEG_QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii")
