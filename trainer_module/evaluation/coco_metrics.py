"""The twelve COCO metrics of a set of detections, with numpy; no TensorFlow.

The curves of boxes come from our own matches (matches.py, box_curves.py), those of masks from faster-coco-eval
(mask_and_keypoint_curves.py). One function computes the metrics from the curves, so that equal curves give equal
metrics to the last digit.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import numpy as np

from detloom.schemas.contracts.arrays import BoolArray, Float64Array, Int64Array
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.contracts.metric_names import METRIC_NAMES
from detloom.schemas.errors import InputError
from detloom.trainer_module.boxes.masks import mask_area_px
from detloom.trainer_module.evaluation.box_curves import compute_box_curves
from detloom.trainer_module.evaluation.coco_images import (
    ImageDetections,
    ImageGroundTruth,
    format_coco_ground_truth,
    format_coco_results,
)
from detloom.trainer_module.evaluation.image_table import ImageTable
from detloom.trainer_module.evaluation.mask_and_keypoint_curves import IouType, compute_coco_curves, uncollected
from detloom.trainer_module.evaluation.matches import SIZES, Matches, match_detections

NO_VALUE = -1.0  # the COCO API's value where there is no ground truth

# Positions in the COCO API's curves: precision [T, R, K, A, M], recall [T, K, A, M]. T: IoU 0.50, 0.55, ... 0.95;
# A: all, small (< 32 x 32 px), medium, large (> 96 x 96 px); M: at most 1, 10, 100 detections per image and class.
_IOU_50, _IOU_75 = 0, 5
_ALL, _SMALL, _MEDIUM, _LARGE = 0, 1, 2, 3
_MAX_1, _MAX_10, _MAX_100 = 0, 1, 2


@dataclass(frozen=True, kw_only=True)
class CocoNumbers:
    """The twelve metrics, 0 to 1, or -1 where there is no ground truth.

    AP is the mean over IoU 0.50:0.05:0.95 and over recall; s, m, l are objects below 32 x 32, between, and above 96 x
    96 pixels; AR1, AR10, AR100 allow that many detections per image and class.
    """

    AP: float
    AP50: float
    AP75: float
    APs: float
    APm: float
    APl: float
    AR1: float
    AR10: float
    AR100: float
    ARs: float
    ARm: float
    ARl: float

    def value_of(self, name: str) -> float:
        """Return a metric by its name in METRIC_NAMES."""
        assert name in METRIC_NAMES, name
        return float(getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class ClassMetrics(CocoNumbers):
    """The twelve metrics of one class; `num_boxes` counts its ground truth without crowds."""

    class_id: int
    name: str
    num_boxes: int


@dataclass(frozen=True, kw_only=True)
class SizeMetrics:
    """Metrics of objects with an area from `min_area_px` to `max_area_px`, both inclusive."""

    name: str
    min_area_px: float
    max_area_px: float
    AP: float
    AP50: float
    AR100: float
    num_boxes: int


@dataclass(frozen=True, kw_only=True)
class CocoMetrics(CocoNumbers):
    """The twelve metrics as means over the classes that have ground truth, and those of each class and size.

    `num_boxes` counts ground truth without crowds; `explain` gives the reason for a -1.
    """

    per_class: tuple[ClassMetrics, ...]
    num_images: int
    num_boxes: int
    per_size: tuple[SizeMetrics, ...] = ()

    def explain(self, name: str) -> str | None:
        """Explain why the metric is -1; None if it was measured."""
        if self.value_of(name) != NO_VALUE:
            return None
        return "no ground truth of this size" if name[-1] in "sml" else "no ground truth"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; `from_dict` restores an equal object, to the last digit."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "CocoMetrics":
        known = {field.name: values[field.name] for field in fields(cls)}
        rows = {
            "per_class": tuple(ClassMetrics(**row) for row in values["per_class"]),
            "per_size": tuple(SizeMetrics(**row) for row in values["per_size"]),
        }
        return cls(**{**known, **rows})


@uncollected()
def compute_coco_metrics(
    ground_truth: Sequence[ImageGroundTruth],
    detections: Sequence[ImageDetections],
    label_map: LabelMap,
    *,
    iou_type: Literal["bbox", "segm"] = "bbox",
    sizes: Sequence[tuple[str, float, float]] = (),
) -> CocoMetrics:
    """Match detections to ground truth as the COCO API does, and compute the metrics.

    Images without an entry in `detections` have no detections. Both lists may be empty; every metric is then -1. The
    order of images does not matter. The order of equal scores inside one image does: the earlier detection matches
    first.

    Args:
        iou_type: "segm" measures masks, which all ground truth and detections then have. The area of a detection is
            then that of its mask.
        sizes: further object sizes as (name, minimum, maximum area in square pixels), measured like small, medium and
            large.

    Raises:
        ValueError: if an image id is repeated, or detections have an image id without ground truth.
        InputError: for a class id that the label map lacks, or a value that is not finite.
    """
    ground_truth = sorted(ground_truth, key=lambda image: image.image_id)
    detections = sorted(detections, key=lambda image: image.image_id)
    hw_by_id = {image.image_id: image.image_hw for image in ground_truth}
    _check_image_ids(ground_truth, detections)
    check_values("ground truth", ImageTable.of(ImageGroundTruth, ground_truth), label_map)
    check_values("detections", ImageTable.of(ImageDetections, detections), label_map)
    if iou_type == "bbox":
        by_id = {image.image_id: image for image in detections}
        found = [by_id.get(image.image_id) or _no_detections(image.image_id) for image in ground_truth]
        areas = [(low, high) for _, low, high in sizes]
        return summarize_matches(match_detections(ground_truth, found, label_map, sizes=areas), label_map, sizes)
    results = [_with_mask_area(row) for row in format_coco_results(detections, hw_by_id)]
    dataset = format_coco_ground_truth(ground_truth, label_map)
    return summarize_coco_datasets(dataset, results, label_map, iou_type="segm", sizes=sizes)


def summarize_matches(
    matches: Matches,
    label_map: LabelMap,
    sizes: Sequence[tuple[str, float, float]] = (),
    is_used_I: BoolArray | None = None,
) -> CocoMetrics:
    """Compute the metrics of matched boxes.

    Args:
        matches: with the ranges of `sizes` in addition to `SIZES`, or more; images by ascending id.
        is_used_I: images that count; None for all.
    """
    precision_TRKA, recall_TKAM = compute_box_curves(matches, is_used_I)
    counted = ~matches.is_crowd
    if is_used_I is not None:
        counted &= is_used_I[matches.truth.image_index]
    objects = _Objects(
        num_images=matches.num_images if is_used_I is None else int(np.count_nonzero(is_used_I)),
        class_ids=np.array(label_map.class_ids)[matches.truth.class_index[counted]],
        areas_px=matches.truth_areas_px[counted],
    )
    return _summarize(precision_TRKA, recall_TKAM, objects, label_map, sizes)


def _no_detections(image_id: int) -> ImageDetections:
    return ImageDetections(image_id, np.zeros((0, 4)), np.zeros(0), np.zeros(0, np.int64))


def _with_mask_area(row: dict[str, Any]) -> dict[str, Any]:
    mask = row["segmentation"]
    return {**row, "area": mask_area_px(mask["counts"].encode("ascii"), tuple(mask["size"]))}


def summarize_coco_datasets(
    truth_dataset: Mapping[str, Any],
    found_annotations: Sequence[Mapping[str, Any]],
    label_map: LabelMap,
    *,
    iou_type: IouType = "bbox",
    sizes: Sequence[tuple[str, float, float]] = (),
) -> CocoMetrics:
    """Compute the metrics of datasets in COCO's format, without checks and in the given order.

    Args:
        truth_dataset: with the categories of `label_map`; see `compute_coco_curves`.
        found_annotations: see `compute_coco_curves`.
        iou_type: the shapes whose overlap counts; not "keypoints", which have other metrics.
    """
    assert iou_type != "keypoints", "keypoints have ten other numbers"
    precision_TRKAM, recall_TKAM = compute_coco_curves(truth_dataset, found_annotations, iou_type=iou_type, sizes=sizes)
    counted = [row for row in truth_dataset["annotations"] if not row["iscrowd"]]
    objects = _Objects(
        num_images=len(truth_dataset["images"]),
        class_ids=np.array([row["category_id"] for row in counted], np.int64),
        areas_px=np.array([row["area"] for row in counted], np.float64),
    )
    return _summarize(precision_TRKAM[..., _MAX_100], recall_TKAM, objects, label_map, sizes)


def _check_image_ids(ground_truth: Sequence[ImageGroundTruth], detections: Sequence[ImageDetections]) -> None:
    for what, ids in (
        ("ground truth", [image.image_id for image in ground_truth]),
        ("detections", [image.image_id for image in detections]),
    ):
        twice = [first for first, second in itertools.pairwise(ids) if first == second]
        if twice:
            raise ValueError(f"{what}: image_id {twice[0]} is repeated.")
    missing = {image.image_id for image in detections} - {image.image_id for image in ground_truth}
    if missing:
        raise ValueError(f"detections: image_id {min(missing)} has no ground truth entry (it may be empty).")


def check_values(what: str, images: ImageTable[Any], label_map: LabelMap) -> None:
    """Raise InputError for an unknown class id, or for a box or score that is not finite."""
    columns = images.columns
    is_known = np.isin(columns["class_ids"], label_map.class_ids)
    is_sound = is_known & np.isfinite(columns["boxes_yxyx_rel"]).all(axis=1)
    if "scores" in columns:
        is_sound &= np.isfinite(columns["scores"])
    if is_sound.all():
        return
    index = int(np.searchsorted(images.offsets_I1, np.flatnonzero(~is_sound)[0], side="right")) - 1
    where, rows = f"{what} of image {images.image_ids_I[index]}", images.rows(index, index + 1)
    unknown = columns["class_ids"][rows][~is_known[rows]]
    if unknown.size:
        allowed = f"allowed by the label map: {list(label_map.class_ids)}"
        raise InputError(f"{where}: got class id {unknown.min()}, {allowed}.")
    raise InputError(f"{where}: a box or score is not a finite number.")


def mean_of_measured(values_of_curve: Float64Array) -> float:
    """Return the mean of the values that are not -1, or -1 if there are none."""
    measured = values_of_curve[values_of_curve > NO_VALUE]
    return float(np.mean(measured)) if measured.size else NO_VALUE


@dataclass(frozen=True, eq=False, kw_only=True)
class _Objects:
    """Class ids and areas of the ground truth without crowds."""

    num_images: int
    class_ids: Int64Array
    areas_px: Float64Array


def _summarize(
    precision_TRKA: Float64Array,
    recall_TKAM: Float64Array,
    objects: _Objects,
    label_map: LabelMap,
    sizes: Sequence[tuple[str, float, float]],
) -> CocoMetrics:
    def ap(k: slice | int, size: int = _ALL, iou: slice | int = slice(None)) -> float:
        return mean_of_measured(precision_TRKA[iou][..., k, size])

    def ar(k: slice | int, size: int = _ALL, limit: int = _MAX_100) -> float:
        return mean_of_measured(recall_TKAM[:, k, size, limit])

    def numbers(k: slice | int) -> dict[str, float]:
        return {
            "AP": ap(k),
            "AP50": ap(k, iou=_IOU_50),
            "AP75": ap(k, iou=_IOU_75),
            "APs": ap(k, _SMALL),
            "APm": ap(k, _MEDIUM),
            "APl": ap(k, _LARGE),
            "AR1": ar(k, limit=_MAX_1),
            "AR10": ar(k, limit=_MAX_10),
            "AR100": ar(k),
            "ARs": ar(k, _SMALL),
            "ARm": ar(k, _MEDIUM),
            "ARl": ar(k, _LARGE),
        }

    class_ids, areas_px = objects.class_ids, objects.areas_px
    return CocoMetrics(
        **numbers(slice(None)),
        per_class=tuple(
            ClassMetrics(
                class_id=class_id, name=name, num_boxes=int(np.count_nonzero(class_ids == class_id)), **numbers(k)
            )
            for k, (class_id, name) in enumerate(label_map.names_by_id)
        ),
        per_size=tuple(
            SizeMetrics(
                name=name,
                min_area_px=low,
                max_area_px=high,
                AP=ap(slice(None), size),
                AP50=ap(slice(None), size, _IOU_50),
                AR100=ar(slice(None), size),
                num_boxes=int(np.count_nonzero((areas_px >= low) & (areas_px <= high))),
            )
            for size, (name, low, high) in enumerate(sizes, start=len(SIZES))
        ),
        num_images=objects.num_images,
        num_boxes=len(class_ids),
    )
