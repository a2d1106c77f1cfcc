"""Build the content of report.json from plain JSON values: verdict, checks, and the underlying numbers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from detloom.components.dataset_validator.checks import CheckResult
from detloom.components.dataset_validator.drift import REPORT_FORMAT
from detloom.components.dataset_validator.params import DatasetValidatorParams
from detloom.components.dataset_validator.statistics.split_statistics import (
    OTHER_ID,
    POSITION_CELLS,
    Histogram,
    SplitStatistics,
)
from detloom.schemas.contracts.label_map import LabelMap

DISTRIBUTIONS = {  # title and unit
    "boxes_per_image": ("Boxes per image", "boxes"),
    "box_sizes_px": ("Box size: square root of the area, px", "px, square root of the area"),
    "box_sizes_input_px": ("Box size in the model's input, px", "px of the model's input, square root of the area"),
    "box_sides_input_px": (
        "Shorter side of the box in the model's input, px",
        "px of the model's input, shorter side",
    ),
    "box_areas_rel": ("Box area as a share of the image", "share of the image"),
    "box_aspect_ratios": ("Box width / height", "width / height"),
    "image_sizes_px": ("Image size: longer side, px", "px, longer side"),
    "image_aspect_ratios": ("Image width / height", "width / height"),
}
_NEEDS_MODEL = ("box_sizes_input_px", "box_sides_input_px")


def build_report(
    splits: Mapping[str, Any],
    results: Sequence[CheckResult],
    label_map: LabelMap,
    params: DatasetValidatorParams,
    *,
    span: int | None,
    drift: Mapping[str, Any],
    anchors: Mapping[str, Any] | None,
    duplicates: Mapping[str, Any],
) -> dict[str, Any]:
    """Build the report; the values of `splits` are results of `describe_split`."""
    verdict, sentence = summarize(results)
    model_input = params.model_input
    return {
        "format": REPORT_FORMAT,
        "verdict": verdict,
        "sentence": sentence,
        "span": span,
        "train_split": params.train_split,
        "classes": [{"id": class_id, "name": name} for class_id, name in label_map.names_by_id],
        "model_input": {"resizer": model_input.describe(), "max_boxes": model_input.max_boxes} if model_input else None,
        "checks": [{**asdict(result), "record_keys": list(result.record_keys)} for result in results],
        "splits": dict(splits),
        "drift": dict(drift),
        "anchors": dict(anchors) if anchors else None,
        "duplicates": dict(duplicates),
    }


def summarize(results: Sequence[CheckResult]) -> tuple[str, str]:
    """Return the overall verdict and a sentence that summarizes the checks."""
    counts = Counter(result.status for result in results)
    verdict = "failed" if counts["failed"] else "warned" if counts["warned"] else "passed"
    parts = []
    for status in ("failed", "warned"):
        names = [result.check for result in results if result.status == status]
        parts += [f"{len(names)} {status} ({', '.join(names)})"] if names else []
    parts += [f"{counts[status]} {status}" for status in ("passed", "skipped", "off") if counts[status]]
    return verdict, f"Of {len(results)} checks, {', '.join(parts)}."


def describe_split(
    part: SplitStatistics, label_map: LabelMap, *, has_model: bool, decodes_images: bool
) -> dict[str, Any]:
    """Describe one split; class counts contain every class of the label map and every class id that occurs."""
    class_ids = sorted({*label_map.class_ids, *part.boxes_by_class_id})
    names = {i: "(other ids)" if i == OTHER_ID else label_map.name_of(i) for i in class_ids}
    distributions = {
        name: getattr(part, name).to_dict(unit) if has_model or name not in _NEEDS_MODEL else None
        for name, (_, unit) in DISTRIBUTIONS.items()
    }
    return {
        "num_examples": part.num_examples,
        "num_unreadable": part.unreadable.count,
        "num_without_boxes": part.num_without_boxes,
        "num_boxes": part.num_boxes,
        "num_sound_boxes": part.num_sound_boxes,
        "num_crowd": part.num_crowd,
        "num_difficult": part.num_difficult,
        "num_undecodable": part.num_undecodable if decodes_images else None,
        "boxes_by_class": {names[i]: part.boxes_by_class_id[i] for i in class_ids},
        "images_by_class": {names[i]: part.images_by_class_id[i] for i in class_ids},
        "distributions": distributions,
        "image_hw": {"min": list(part.min_hw), "max": list(part.max_hw)} if part.num_examples else None,
        "positions": _grid(part.positions),
    }


def _grid(positions: Histogram) -> dict[str, Any]:
    size = POSITION_CELLS
    return {"rows": size, "columns": size, "counts": positions.counts_Q.reshape(size, size).tolist()}


def metrics_of(report: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers that the user interface of a pipeline backend shows."""
    metrics = {"checks_failed": 0.0, "checks_warned": 0.0}
    for check in report["checks"]:
        if check["status"] in ("failed", "warned"):
            metrics[f"checks_{check['status']}"] += 1.0
        if check["value"] is not None:
            metrics[f"check_{check['check']}"] = float(check["value"])
    for split, numbers in report["splits"].items():
        metrics[f"{split}_examples"] = float(numbers["num_examples"])
        metrics[f"{split}_boxes"] = float(numbers["num_boxes"])
    return metrics
