"""The twelve COCO metrics of a set of detections, with numpy; no TensorFlow.

The backends (coco_backends.py) only match and accumulate curves. One function here computes the metrics from the
curves, so that equal curves give equal metrics to the last digit.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.contracts.metric_names import METRIC_NAMES
from detloom.schemas.errors import InputError
from detloom.trainer_module.evaluation.coco_backends import Backend, IouType, compute_coco_curves, uncollected

NO_VALUE = -1.0  # the COCO API's value where there is no ground truth

# Positions in the COCO API's curves: precision [T, R, K, A, M], recall [T, K, A, M]. T: IoU 0.50, 0.55, ... 0.95;
# A: all, small (< 32 x 32 px), medium, large (> 96 x 96 px); M: at most 1, 10, 100 detections per image and class.
_IOU_50, _IOU_75 = 0, 5
_ALL, _SMALL, _MEDIUM, _LARGE = 0, 1, 2, 3
_MAX_1, _MAX_10, _MAX_100 = 0, 1, 2


@dataclass(frozen=True, eq=False)
class ImageGroundTruth:
    """Ground truth of one image.

    Attributes:
        image_id: shared with the image's detections; unique in an evaluation.
        image_hw: height and width in pixels.
        boxes_yxyx_rel: float [G, 4].
        class_ids: int [G], label-map ids.
        is_crowd: bool [G]; detections on a crowd are neither correct nor wrong.
        area_px: float [G], the area that decides small, medium, large; None uses the area of the box.
        is_difficult, is_group_of: bool [G], special cases of PASCAL VOC and Open Images; None if there are none.
        verified_class_ids: classes that Open Images' image-level labels confirm as present or absent.
        given_xywh_px: float [G, 4], the same boxes in a file's pixels; relative boxes lose the last digit.
    """

    image_id: int
    image_hw: tuple[int, int]
    boxes_yxyx_rel: npt.NDArray[Any]
    class_ids: npt.NDArray[Any]
    is_crowd: npt.NDArray[Any]
    area_px: npt.NDArray[Any] | None = None
    is_difficult: npt.NDArray[Any] | None = None
    is_group_of: npt.NDArray[Any] | None = None
    verified_class_ids: tuple[int, ...] = ()
    given_xywh_px: npt.NDArray[Any] | None = None

    def __post_init__(self) -> None:
        columns = {"class_ids": self.class_ids, "is_crowd": self.is_crowd}
        for name in ("area_px", "is_difficult", "is_group_of"):
            if getattr(self, name) is not None:
                columns[name] = getattr(self, name)
        _check_lengths(f"ground truth of image {self.image_id}", self.boxes_yxyx_rel, columns)

    def xywh_px(self) -> npt.NDArray[np.float64]:
        """Return COCO boxes, float64 [G, 4]."""
        if self.given_xywh_px is not None:
            return np.asarray(self.given_xywh_px, np.float64).reshape(-1, 4)
        return boxes_yxyx_rel_to_xywh_px(self.boxes_yxyx_rel, self.image_hw)


@dataclass(frozen=True, eq=False)
class ImageDetections:
    """Detections in one image: `boxes_yxyx_rel` float [N, 4], `scores` float [N], `class_ids` int [N].

    `given_xywh_px` float [N, 4] are the same boxes in a file's pixels, as in `ImageGroundTruth`.
    """

    image_id: int
    boxes_yxyx_rel: npt.NDArray[Any]
    scores: npt.NDArray[Any]
    class_ids: npt.NDArray[Any]
    given_xywh_px: npt.NDArray[Any] | None = None

    def __post_init__(self) -> None:
        columns = {"scores": self.scores, "class_ids": self.class_ids}
        _check_lengths(f"detections of image {self.image_id}", self.boxes_yxyx_rel, columns)

    def xywh_px(self, image_hw: tuple[int, int]) -> npt.NDArray[np.float64]:
        """Return COCO boxes, float64 [N, 4]."""
        if self.given_xywh_px is not None:
            return np.asarray(self.given_xywh_px, np.float64).reshape(-1, 4)
        return boxes_yxyx_rel_to_xywh_px(self.boxes_yxyx_rel, image_hw)


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
        """Return plain JSON values; `from_dict` restores an equal object, to the last digit."""
        rows = {
            "per_class": [asdict(row) for row in self.per_class],
            "per_size": [asdict(row) for row in self.per_size],
        }
        return {**asdict(self), **rows}

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
    sizes: Sequence[tuple[str, float, float]] = (),
    backend: Backend = "faster",
) -> CocoMetrics:
    """Match detections to ground truth as the COCO API does, and compute the metrics.

    Images without an entry in `detections` have no detections. Both lists may be empty; every metric is then -1. The
    order of images does not matter. The order of equal scores inside one image does: the earlier detection matches
    first.

    Args:
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
    _check_values("ground truth", ground_truth, label_map)
    _check_values("detections", detections, label_map)

    return summarize_coco_datasets(
        format_coco_ground_truth(ground_truth, label_map),
        format_coco_results(detections, hw_by_id),
        label_map,
        sizes=sizes,
        backend=backend,
    )


def summarize_coco_datasets(
    truth_dataset: Mapping[str, Any],
    found_annotations: Sequence[Mapping[str, Any]],
    label_map: LabelMap,
    *,
    iou_type: IouType = "bbox",
    sizes: Sequence[tuple[str, float, float]] = (),
    backend: Backend = "faster",
) -> CocoMetrics:
    """Compute the metrics of datasets in COCO's format, without checks and in the given order.

    Args:
        truth_dataset: with the categories of `label_map`; see `compute_coco_curves`.
        found_annotations: see `compute_coco_curves`.
        iou_type: the shapes whose overlap counts; not "keypoints", which have other metrics.
    """
    assert iou_type != "keypoints", "keypoints have ten other numbers"
    precision_TRKAM, recall_TKAM = compute_coco_curves(
        truth_dataset, found_annotations, iou_type=iou_type, sizes=sizes, backend=backend
    )
    return _summarize(precision_TRKAM, recall_TKAM, truth_dataset, label_map, sizes)


def boxes_yxyx_rel_to_xywh_px(boxes_yxyx_rel: npt.ArrayLike, image_hw: tuple[int, int]) -> npt.NDArray[np.float64]:
    """Convert to COCO's JSON boxes (left, top, width, height in pixels), float64 [N, 4]."""
    height, width = image_hw
    boxes_yxyx_px = np.asarray(boxes_yxyx_rel, np.float64).reshape(-1, 4) * [height, width, height, width]
    ymin, xmin, ymax, xmax = boxes_yxyx_px.T
    return np.stack([xmin, ymin, xmax - xmin, ymax - ymin], axis=1)


def boxes_xywh_px_to_yxyx_rel(boxes_xywh_px: npt.ArrayLike, image_hw: tuple[int, int]) -> npt.NDArray[np.float64]:
    """Convert from COCO's JSON boxes, float64 [N, 4]."""
    height, width = image_hw
    x, y, box_width, box_height = np.asarray(boxes_xywh_px, np.float64).reshape(-1, 4).T
    return np.stack([y, x, y + box_height, x + box_width], axis=1) / [height, width, height, width]


def format_coco_ground_truth(
    ground_truth: Iterable[ImageGroundTruth], label_map: LabelMap, file_names: Mapping[int, str] | None = None
) -> dict[str, Any]:
    """Format ground truth like a COCO annotation file; `file_names` by image id, if known."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for image in ground_truth:
        height, width = image.image_hw
        name = {} if file_names is None else {"file_name": file_names[image.image_id]}
        images.append({"id": image.image_id, "height": height, "width": width, **name})
        boxes_xywh_px = image.xywh_px()
        areas = boxes_xywh_px[:, 2] * boxes_xywh_px[:, 3] if image.area_px is None else image.area_px
        columns = zip(
            boxes_xywh_px.tolist(),
            np.asarray(image.class_ids).astype(int).tolist(),
            np.asarray(image.is_crowd).astype(int).tolist(),
            np.asarray(areas, np.float64).tolist(),
            strict=True,
        )
        for box, class_id, crowd, area in columns:
            # Ids start at 1: the COCO API treats a match with id 0 as no match.
            key = {"id": len(annotations) + 1, "image_id": image.image_id, "category_id": class_id}
            annotations.append({**key, "bbox": box, "area": area, "iscrowd": crowd})
    categories = [{"id": class_id, "name": name} for class_id, name in label_map.names_by_id]
    return {"info": {}, "images": images, "categories": categories, "annotations": annotations}


def format_coco_results(
    detections: Iterable[ImageDetections], hw_by_id: Mapping[int, tuple[int, int]]
) -> list[dict[str, Any]]:
    """Format detections like a COCO results file; `hw_by_id` has the image sizes."""
    rows = []
    for image in detections:
        boxes_xywh_px = image.xywh_px(hw_by_id[image.image_id])
        columns = zip(
            boxes_xywh_px.tolist(),
            np.asarray(image.class_ids).astype(int).tolist(),
            np.asarray(image.scores, np.float64).tolist(),
            strict=True,
        )
        for box, class_id, score in columns:
            rows.append({"image_id": image.image_id, "category_id": class_id, "bbox": box, "score": score})
    return rows


def _check_lengths(what: str, boxes: npt.NDArray[Any], columns: Mapping[str, npt.NDArray[Any]]) -> None:
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"{what}: boxes_yxyx_rel has shape {boxes.shape}, allowed: [N, 4].")
    for name, values in columns.items():
        if values.shape != (len(boxes),):
            raise ValueError(f"{what}: {name} has shape {values.shape}, allowed: ({len(boxes)},), one for each box.")


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


def _check_values(what: str, images: Sequence[ImageGroundTruth | ImageDetections], label_map: LabelMap) -> None:
    known = np.array(label_map.class_ids, np.int64)

    def is_sound(images: Sequence[ImageGroundTruth | ImageDetections]) -> bool:
        class_ids = np.concatenate([known[:0], *(image.class_ids for image in images)])
        boxes = np.concatenate([np.zeros((0, 4)), *(image.boxes_yxyx_rel for image in images)])
        scores = [image.scores for image in images if isinstance(image, ImageDetections)]
        numbers = np.concatenate([np.zeros(0), *scores])
        return bool(np.isin(class_ids, known).all() and np.isfinite(boxes).all() and np.isfinite(numbers).all())

    if is_sound(images):  # all at once for speed
        return
    image = next(image for image in images if not is_sound([image]))
    where, unknown = f"{what} of image {image.image_id}", np.setdiff1d(image.class_ids, known)
    if unknown.size:
        raise InputError(f"{where}: got class id {unknown[0]}, allowed by the label map: {list(label_map.class_ids)}.")
    raise InputError(f"{where}: a box or score is not a finite number.")


def mean_of_measured(values_of_curve: npt.NDArray[np.float64]) -> float:
    """Return the mean of the values that are not -1, or -1 if there are none."""
    measured = values_of_curve[values_of_curve > NO_VALUE]
    return float(np.mean(measured)) if measured.size else NO_VALUE


def _summarize(
    precision_TRKAM: npt.NDArray[np.float64],
    recall_TKAM: npt.NDArray[np.float64],
    truth_dataset: Mapping[str, Any],
    label_map: LabelMap,
    sizes: Sequence[tuple[str, float, float]],
) -> CocoMetrics:
    def ap(k: slice | int, size: int = _ALL, iou: slice | int = slice(None)) -> float:
        return mean_of_measured(precision_TRKAM[iou][..., k, size, _MAX_100])

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

    counted = [row for row in truth_dataset["annotations"] if not row["iscrowd"]]
    class_ids = np.array([row["category_id"] for row in counted], np.int64)
    areas_px = np.array([row["area"] for row in counted], np.float64)
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
            for size, (name, low, high) in enumerate(sizes, start=_LARGE + 1)
        ),
        num_images=len(truth_dataset["images"]),
        num_boxes=len(class_ids),
    )
