"""The COCO numbers of plain COCO files, of boxes, masks and keypoints: those of pycocotools to the last digit."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from detloom.components.evaluator.coco_files import CocoSplit, read_keypoints
from detloom.components.evaluator.coco_masks import encode_mask
from detloom.schemas.errors import InputError
from detloom.schemas.redact import escape
from detloom.trainer_module.coco_backends import Backend, IouType, compute_coco_curves
from detloom.trainer_module.coco_metrics import CocoMetrics, mean_of_measured, summarize_coco_datasets

_NUM_KEYPOINTS = 17  # of COCO's persons: the API knows how exactly each of them can be placed, and of no others
_KEY_OF_TYPE: dict[IouType, str] = {"bbox": "bbox", "segm": "segmentation", "keypoints": "keypoints"}

# Positions in the COCO API's curves of keypoints: IoU 0.50, 0.75; all, medium and large objects; 20 an image and class.
_IOU_50, _IOU_75 = 0, 5
_ALL, _MEDIUM, _LARGE = 0, 1, 2
_MAX_20 = 0


@dataclass(frozen=True, kw_only=True)
class KeypointMetrics:
    """The ten numbers of keypoints, 0 to 1, or -1 where there is no ground truth to measure on.

    As for boxes, with object keypoint similarity for IoU; there are no small objects, and 20 detections an image and
    class count.
    """

    AP: float
    AP50: float
    AP75: float
    APm: float
    APl: float
    AR: float
    AR50: float
    AR75: float
    ARm: float
    ARl: float


def iou_types_of(results: Sequence[Mapping[str, Any]], truth: CocoSplit) -> tuple[IouType, ...]:
    """What can be measured: what the detections carry and some of the ground truth too; boxes without detections."""
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
    backend: Backend = "faster",
) -> CocoMetrics:
    """The twelve numbers of `CocoDetections.results`; see `compute_coco_metrics`.

    Every annotation counts, also one with the id 0, whose match pycocotools takes for none.

    Raises:
        InputError: masks are measured, and an annotation has none or an unsound one, or the detections have none.
    """
    _check_results(results, iou_type)
    dataset = truth.dataset if iou_type == "bbox" else _complete(truth, _with_mask)
    return summarize_coco_datasets(
        dataset, results, truth.split.label_map, iou_type=iou_type, sizes=sizes, backend=backend
    )


def compute_coco_keypoint_metrics(
    truth: CocoSplit, results: Sequence[Mapping[str, Any]], *, backend: Backend = "faster"
) -> KeypointMetrics:
    """The ten numbers of `CocoDetections.results`.

    An annotation without `keypoints` has none that are labelled: like a crowd it makes detections on it neither right
    nor wrong. Where `num_keypoints` is missing, those with a visibility above 0 are counted.

    Raises:
        InputError: keypoints that are not the 17 of COCO's persons, or detections without.
    """
    _check_results(results, "keypoints")
    precision_TRKAM, recall_TKAM = compute_coco_curves(
        _complete(truth, _with_keypoints), results, iou_type="keypoints", backend=backend
    )
    precision_TRKA, recall_TKA = precision_TRKAM[..., _MAX_20], recall_TKAM[..., _MAX_20]
    return KeypointMetrics(
        AP=mean_of_measured(precision_TRKA[..., _ALL]),
        AP50=mean_of_measured(precision_TRKA[_IOU_50, ..., _ALL]),
        AP75=mean_of_measured(precision_TRKA[_IOU_75, ..., _ALL]),
        APm=mean_of_measured(precision_TRKA[..., _MEDIUM]),
        APl=mean_of_measured(precision_TRKA[..., _LARGE]),
        AR=mean_of_measured(recall_TKA[..., _ALL]),
        AR50=mean_of_measured(recall_TKA[_IOU_50, ..., _ALL]),
        AR75=mean_of_measured(recall_TKA[_IOU_75, ..., _ALL]),
        ARm=mean_of_measured(recall_TKA[..., _MEDIUM]),
        ARl=mean_of_measured(recall_TKA[..., _LARGE]),
    )


def _check_results(results: Sequence[Mapping[str, Any]], iou_type: IouType) -> None:
    key = _KEY_OF_TYPE[iou_type]
    for index, row in enumerate(results):
        if key not in row:
            raise InputError(f"results[{index}]: has no {key!r}, needed for the numbers of {iou_type!r}.")
        if iou_type == "keypoints" and len(row[key]) != 3 * _NUM_KEYPOINTS:
            raise InputError(f"results[{index}]: {_wrong_keypoints(row[key])}.")


def _complete(
    truth: CocoSplit, complete: Callable[[dict[str, Any], tuple[int, int]], dict[str, Any]]
) -> dict[str, Any]:
    """The dataset with every annotation completed; a ValueError of it becomes an InputError that says where."""
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
        raise ValueError("has no 'segmentation', needed for the numbers of 'segm'; give all a mask or measure boxes")
    return {"segmentation": encode_mask(row["segmentation"], image_hw)}


def _with_keypoints(row: dict[str, Any], image_hw: tuple[int, int]) -> dict[str, Any]:
    keypoints = read_keypoints(row) if "keypoints" in row else [0] * (3 * _NUM_KEYPOINTS)
    if len(keypoints) != 3 * _NUM_KEYPOINTS:
        raise ValueError(_wrong_keypoints(keypoints))
    num_keypoints = row.get("num_keypoints", sum(visibility > 0 for visibility in keypoints[2::3]))
    if type(num_keypoints) is not int or num_keypoints < 0:
        raise ValueError(f"'num_keypoints' must be a whole number from 0 up, got {num_keypoints!r:.60}")
    return {"keypoints": keypoints, "num_keypoints": num_keypoints}


def _wrong_keypoints(keypoints: Sequence[float]) -> str:
    return f"'keypoints' has {len(keypoints)} numbers, allowed: {3 * _NUM_KEYPOINTS}, x, y and visibility of 17 points"
