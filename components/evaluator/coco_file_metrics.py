"""COCO metrics of COCO files for boxes, masks and keypoints, equal to pycocotools to the last digit."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from detloom.components.evaluator.coco_files import CocoSplit, read_keypoints
from detloom.components.evaluator.coco_masks import encode_mask
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import escape
from detloom.trainer_module.evaluation.coco_metrics import (
    CocoMetrics,
    summarize_coco_datasets,
)
from detloom.trainer_module.evaluation.keypoint_metrics import KeypointMetrics, summarize_keypoints
from detloom.trainer_module.evaluation.mask_and_keypoint_curves import IouType

_NUM_KEYPOINTS = 17  # COCO's keypoints of persons, if no category names others
_KEY_OF_TYPE: dict[IouType, str] = {"bbox": "bbox", "segm": "segmentation", "keypoints": "keypoints"}


def iou_types_of(results: Sequence[Mapping[str, Any]], truth: CocoSplit) -> tuple[IouType, ...]:
    """Return what can be measured: what the detections and some of the ground truth have; boxes without detections."""
    if not results:
        return ("bbox",)
    return tuple(
        iou_type
        for iou_type, key in _KEY_OF_TYPE.items()
        if key in results[0] and (key == "bbox" or any(key in row for row in truth.dataset["annotations"]))
    )


def compute_coco_file_metrics(
    truth: CocoSplit,
    results: Sequence[Mapping[str, Any]],
    iou_type: Literal["bbox", "segm"],
    *,
    sizes: Sequence[tuple[str, float, float]] = (),
) -> CocoMetrics:
    """Compute the twelve COCO metrics of `CocoDetections.results`; see `compute_coco_metrics`.

    All annotations count, including one with id 0, for which pycocotools mistakes a match for no match.

    Raises:
        InputError: for masks, an annotation or detection without a valid mask.
    """
    _check_results(results, iou_type)
    dataset = truth.dataset if iou_type == "bbox" else _complete(truth, _with_mask)
    return summarize_coco_datasets(dataset, results, truth.split.label_map, iou_type=iou_type, sizes=sizes)


def compute_coco_keypoint_metrics(truth: CocoSplit, results: Sequence[Mapping[str, Any]]) -> KeypointMetrics:
    """Compute the ten COCO keypoint metrics of `CocoDetections.results`.

    A category of the annotation file names its keypoints; otherwise they are COCO's 17 of a person. An annotation
    without `keypoints` has no labelled keypoints: detections on it are ignored, as on a crowd. A missing
    `num_keypoints` is the number of keypoints with a visibility above 0.

    Raises:
        InputError: another number of keypoints, or detections without keypoints.
    """
    keypoints = truth.split.keypoints
    num_points = _NUM_KEYPOINTS if keypoints is None else len(keypoints.names)
    _check_results(results, "keypoints", num_points)
    dataset = _complete(truth, lambda row, _: _with_keypoints(row, num_points))
    return summarize_keypoints(dataset, results, keypoints.sigmas if keypoints else None)


def _check_results(results: Sequence[Mapping[str, Any]], iou_type: IouType, num_points: int = _NUM_KEYPOINTS) -> None:
    key = _KEY_OF_TYPE[iou_type]
    for index, row in enumerate(results):
        if key not in row:
            raise InputError(f"results[{index}]: has no {key!r}, which {iou_type!r} metrics need.")
        if iou_type == "keypoints" and len(row[key]) != 3 * num_points:
            raise InputError(f"results[{index}]: {_wrong_keypoints(row[key], num_points)}.")


def _complete(
    truth: CocoSplit, complete: Callable[[dict[str, Any], tuple[int, int]], dict[str, Any]]
) -> dict[str, Any]:
    """Complete every annotation of the dataset; turn a ValueError into an InputError with file and annotation."""
    hw_by_id = {image.image_id: image.image_hw for image in truth.split.ground_truth}
    annotations = []
    for index, row in enumerate(truth.dataset["annotations"]):
        try:
            annotations.append({**row, **complete(row, hw_by_id[row["image_id"]])})
        except ValueError as error:
            raise InputError(f"{escape(str(truth.path))}: annotations[{index}]: {error}.") from None
    return {**truth.dataset, "annotations": annotations}


def _with_mask(row: dict[str, Any], image_hw: tuple[int, int]) -> dict[str, Any]:
    if "segmentation" not in row:
        raise ValueError("has no 'segmentation', which 'segm' metrics need; add masks to all annotations or use boxes")
    return {"segmentation": encode_mask(row["segmentation"], image_hw)}


def _with_keypoints(row: dict[str, Any], num_points: int) -> dict[str, Any]:
    keypoints = read_keypoints(row) if "keypoints" in row else [0] * (3 * num_points)
    if len(keypoints) != 3 * num_points:
        raise ValueError(_wrong_keypoints(keypoints, num_points))
    num_keypoints = row.get("num_keypoints", sum(visibility > 0 for visibility in keypoints[2::3]))
    if type(num_keypoints) is not int or num_keypoints < 0:
        raise ValueError(f"'num_keypoints' must be an integer of 0 or more, got {num_keypoints!r:.60}")
    return {"keypoints": keypoints, "num_keypoints": num_keypoints}


def _wrong_keypoints(keypoints: Sequence[float], num_points: int) -> str:
    allowed = f"{3 * num_points} (x, y, visibility of {num_points} points)"
    return f"'keypoints' has {len(keypoints)} numbers, allowed: {allowed}"
