"""The twelve COCO numbers of a set of detections, with numpy and two interchangeable backends; no TensorFlow.

faster-coco-eval does the work, pycocotools is the reference. Both only match boxes and accumulate curves; the numbers
are read from the curves by one function here, so that equal curves mean equal numbers to the last digit.
"""

import contextlib
import io
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap
from detloom.schemas.metric_names import METRIC_NAMES

Backend = Literal["faster", "pycocotools"]
NO_VALUE = -1.0  # what the COCO API says where there is nothing to measure

# Positions in the COCO API's curves: precision [T, R, K, A, M], recall [T, K, A, M]. T: IoU 0.50, 0.55, ... 0.95;
# A: all, small (< 32 x 32 px), medium, large (> 96 x 96 px); M: at most 1, 10, 100 detections an image and class.
_IOU_50, _IOU_75 = 0, 5
_ALL, _SMALL, _MEDIUM, _LARGE = 0, 1, 2, 3
_MAX_1, _MAX_10, _MAX_100 = 0, 1, 2


@dataclass(frozen=True, eq=False)
class ImageGroundTruth:
    """What one image really shows.

    Attributes:
        image_id: the key that its detections share; unique in an evaluation.
        image_hw: height and width in pixels.
        boxes_yxyx_rel: float [G, 4].
        class_ids: int [G], label-map ids.
        is_crowd: bool [G]; detections on a crowd are neither right nor wrong.
        area_px: float [G], the area that decides small, medium, large; None takes the box's own.
    """

    image_id: int
    image_hw: tuple[int, int]
    boxes_yxyx_rel: npt.NDArray[Any]
    class_ids: npt.NDArray[Any]
    is_crowd: npt.NDArray[Any]
    area_px: npt.NDArray[Any] | None = None

    def __post_init__(self) -> None:
        columns = {"class_ids": self.class_ids, "is_crowd": self.is_crowd}
        if self.area_px is not None:
            columns["area_px"] = self.area_px
        _check_lengths(f"ground truth of image {self.image_id}", self.boxes_yxyx_rel, columns)


@dataclass(frozen=True, eq=False)
class ImageDetections:
    """What a model found in one image: `boxes_yxyx_rel` float [N, 4], `scores` float [N], `class_ids` int [N]."""

    image_id: int
    boxes_yxyx_rel: npt.NDArray[Any]
    scores: npt.NDArray[Any]
    class_ids: npt.NDArray[Any]

    def __post_init__(self) -> None:
        columns = {"scores": self.scores, "class_ids": self.class_ids}
        _check_lengths(f"detections of image {self.image_id}", self.boxes_yxyx_rel, columns)


@dataclass(frozen=True, kw_only=True)
class ClassMetrics:
    """One class's share of the numbers; `num_boxes` counts its ground truth without crowds."""

    class_id: int
    name: str
    AP: float
    AP50: float
    AR100: float
    num_boxes: int


@dataclass(frozen=True, kw_only=True)
class CocoMetrics:
    """The twelve numbers, 0 to 1, or -1 where there is no ground truth to measure on (see `explain`).

    AP is the mean over IoU 0.50:0.05:0.95, over recall and over the classes that have ground truth; s, m, l are objects
    below 32 x 32, between, and above 96 x 96 pixels; AR1, AR10, AR100 allow that many detections an image and class.
    `num_boxes` counts ground truth without crowds.
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
    per_class: tuple[ClassMetrics, ...]
    num_images: int
    num_boxes: int

    def value_of(self, name: str) -> float:
        """The number of that name; `name` is one of METRIC_NAMES."""
        assert name in METRIC_NAMES, name
        return float(getattr(self, name))

    def explain(self, name: str) -> str | None:
        """Why the number of that name is -1, as a sentence; None when it is a measurement."""
        if self.value_of(name) != NO_VALUE:
            return None
        return "no ground truth of this size" if name[-1] in "sml" else "no ground truth"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` gives the same object back, to the last digit."""
        return {**asdict(self), "per_class": [asdict(row) for row in self.per_class]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "CocoMetrics":
        known = {field.name: values[field.name] for field in fields(cls)}
        return cls(**{**known, "per_class": tuple(ClassMetrics(**row) for row in values["per_class"])})


def compute_coco_metrics(
    ground_truth: Sequence[ImageGroundTruth],
    detections: Sequence[ImageDetections],
    label_map: LabelMap,
    *,
    backend: Backend = "faster",
) -> CocoMetrics:
    """Match detections to ground truth as the COCO API does and summarize.

    Images without an entry in `detections` have none found. Both lists may be empty; every number is then -1. The order
    of images does not matter; that of equal scores inside one image does (the earlier detection matches first).

    Raises:
        ValueError: an image id stands twice, or detections name an image that the ground truth lacks.
        InputError: a class id that the label map lacks, or a value that is not finite.
    """
    ground_truth = sorted(ground_truth, key=lambda image: image.image_id)
    detections = sorted(detections, key=lambda image: image.image_id)
    hw_by_id = {image.image_id: image.image_hw for image in ground_truth}
    _check_image_ids(ground_truth, detections)
    for truth in ground_truth:
        _check_values(f"ground truth of image {truth.image_id}", truth.class_ids, label_map, truth.boxes_yxyx_rel)
    for found in detections:
        what = f"detections of image {found.image_id}"
        _check_values(what, found.class_ids, label_map, found.boxes_yxyx_rel, found.scores)

    # Fresh dictionaries for every call: the backends write their marks into them.
    truth_dataset = format_coco_ground_truth(ground_truth, label_map)
    found_dataset = {**truth_dataset, "annotations": format_coco_results(detections, hw_by_id)}
    for key, row in enumerate(found_dataset["annotations"], start=1):
        row.update(id=key, area=row["bbox"][2] * row["bbox"][3], iscrowd=0)
    accumulate = {"faster": _curves_of_faster_coco_eval, "pycocotools": _curves_of_pycocotools}[backend]
    precision_TRKAM, recall_TKAM = accumulate(truth_dataset, found_dataset)
    return _summarize(precision_TRKAM, recall_TKAM, ground_truth, label_map)


def boxes_yxyx_rel_to_xywh_px(boxes_yxyx_rel: npt.ArrayLike, image_hw: tuple[int, int]) -> npt.NDArray[np.float64]:
    """COCO's JSON boxes (left, top, width, height in pixels), float64 [N, 4]."""
    height, width = image_hw
    boxes_yxyx_px = np.asarray(boxes_yxyx_rel, np.float64).reshape(-1, 4) * [height, width, height, width]
    ymin, xmin, ymax, xmax = boxes_yxyx_px.T
    return np.stack([xmin, ymin, xmax - xmin, ymax - ymin], axis=1)


def format_coco_ground_truth(
    ground_truth: Iterable[ImageGroundTruth], label_map: LabelMap, file_names: Mapping[int, str] | None = None
) -> dict[str, Any]:
    """The ground truth as a COCO annotation file says it; `file_names` by image id, where they are known."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for image in ground_truth:
        height, width = image.image_hw
        name = {} if file_names is None else {"file_name": file_names[image.image_id]}
        images.append({"id": image.image_id, "height": height, "width": width, **name})
        boxes_xywh_px = boxes_yxyx_rel_to_xywh_px(image.boxes_yxyx_rel, image.image_hw)
        areas = boxes_xywh_px[:, 2] * boxes_xywh_px[:, 3] if image.area_px is None else image.area_px
        columns = zip(
            boxes_xywh_px.tolist(),
            np.asarray(image.class_ids).astype(int).tolist(),
            np.asarray(image.is_crowd).astype(int).tolist(),
            np.asarray(areas, np.float64).tolist(),
            strict=True,
        )
        for box, class_id, crowd, area in columns:
            # Ids start at 1: the COCO API takes a match with id 0 for no match.
            key = {"id": len(annotations) + 1, "image_id": image.image_id, "category_id": class_id}
            annotations.append({**key, "bbox": box, "area": area, "iscrowd": crowd})
    categories = [{"id": class_id, "name": name} for class_id, name in label_map.names_by_id]
    return {"info": {}, "images": images, "categories": categories, "annotations": annotations}


def format_coco_results(
    detections: Iterable[ImageDetections], hw_by_id: Mapping[int, tuple[int, int]]
) -> list[dict[str, Any]]:
    """Detections as a COCO results file says them; `hw_by_id` has the image sizes."""
    rows = []
    for image in detections:
        boxes_xywh_px = boxes_yxyx_rel_to_xywh_px(image.boxes_yxyx_rel, hw_by_id[image.image_id])
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
            raise ValueError(f"{what}: image_id {twice[0]} stands twice.")
    missing = {image.image_id for image in detections} - {image.image_id for image in ground_truth}
    if missing:
        raise ValueError(f"detections: image_id {min(missing)} has no ground truth entry (an empty one would do).")


def _check_values(what: str, class_ids: npt.NDArray[Any], label_map: LabelMap, *numbers: npt.NDArray[Any]) -> None:
    unknown = set(np.unique(class_ids).tolist()) - set(label_map.class_ids)
    if unknown:
        raise InputError(f"{what}: got class id {min(unknown)}, allowed by the label map: {list(label_map.class_ids)}.")
    if not all(np.isfinite(np.asarray(values, np.float64)).all() for values in numbers):
        raise InputError(f"{what}: a box or score is not a finite number.")


def _curves_of_faster_coco_eval(
    truth: dict[str, Any], found: dict[str, Any]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    from faster_coco_eval import COCO, COCOeval_faster

    def quiet(*_: object) -> None:
        return None

    coco_truth, coco_found = COCO(truth, print_function=quiet), COCO(found, print_function=quiet)
    evaluation = COCOeval_faster(coco_truth, coco_found, iouType="bbox", print_function=quiet)
    standard_R = np.asarray(evaluation.params.recThrs)
    # Also below 0.01, each half of the one before: `_round_as_pycocotools` has to tell one object of many from two.
    halvings = np.arange(1, (len(truth["annotations"]) // 200).bit_length() + 1)
    recall_R = np.unique(np.concatenate([standard_R, 0.01 / 2.0**halvings]))
    evaluation.params.recThrs = recall_R
    evaluation.evaluate()
    evaluation.accumulate()
    precision_TRKAM = np.asarray(evaluation.eval["precision"])
    _round_as_pycocotools(precision_TRKAM, recall_R, _count_truth_KA(truth, evaluation.params))
    return precision_TRKAM[:, np.isin(recall_R, standard_R)], np.asarray(evaluation.eval["recall"])


def _count_truth_KA(truth: Mapping[str, Any], params: Any) -> npt.NDArray[np.int64]:
    """Ground-truth boxes that count, by class and size."""
    rows = [row for row in truth["annotations"] if not row["iscrowd"]]
    class_ids = np.array([row["category_id"] for row in rows])
    areas = np.array([row["area"] for row in rows])
    in_range = [(areas >= low) & (areas <= high) for low, high in params.areaRng]
    return np.array([[np.count_nonzero((class_ids == k) & inside) for inside in in_range] for k in params.catIds])


def _round_as_pycocotools(
    precision_TRKAM: npt.NDArray[np.float64], recall_R: npt.NDArray[np.float64], num_truth_KA: npt.NDArray[np.int64]
) -> None:
    """Change a precision of 1 in place to the last digit that pycocotools gives it.

    pycocotools divides by `true + false + 2**-52`. That sum is rounded to the same number again unless it is 1: a
    precision of 1 reached by a single right detection is 1 - 2**-52 there, and plain 1 in faster-coco-eval. The curve
    tells which it was: with two or more right ones in front it is still 1 at a recall between one and two objects.
    """
    for k, size in np.argwhere(num_truth_KA > 0):
        num_truth = num_truth_KA[k, size]
        curves_TRM = precision_TRKAM[:, :, k, size, :]
        is_single_TM = np.ones_like(curves_TRM[:, 0, :], bool)
        if num_truth > 1:
            beyond_one = np.searchsorted(recall_R, 2 / num_truth, side="right") - 1
            assert 1 / num_truth < recall_R[beyond_one] <= 2 / num_truth
            is_single_TM = curves_TRM[:, beyond_one, :] != 1
        curves_TRM[is_single_TM[:, None, :] & (curves_TRM == 1)] = 1 / (1 + np.spacing(1.0))


def _curves_of_pycocotools(
    truth: dict[str, Any], found: dict[str, Any]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def index(dataset: dict[str, Any]) -> Any:
        coco = COCO()  # its loadRes cannot take an empty list, so the detections are indexed like the ground truth
        coco.dataset = dataset
        coco.createIndex()
        return coco

    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = COCOeval(index(truth), index(found), iouType="bbox")
        evaluation.evaluate()
        evaluation.accumulate()
    return evaluation.eval["precision"], evaluation.eval["recall"]


def _mean_of_measured(values: npt.NDArray[np.float64]) -> float:
    measured = values[values > NO_VALUE]
    return float(np.mean(measured)) if measured.size else NO_VALUE


def _summarize(
    precision_TRKAM: npt.NDArray[np.float64],
    recall_TKAM: npt.NDArray[np.float64],
    ground_truth: Sequence[ImageGroundTruth],
    label_map: LabelMap,
) -> CocoMetrics:
    def ap(iou: slice | int = slice(None), size: int = _ALL, class_index: slice | int = slice(None)) -> float:
        return _mean_of_measured(precision_TRKAM[iou][..., class_index, size, _MAX_100])

    def ar(limit: int = _MAX_100, size: int = _ALL, class_index: slice | int = slice(None)) -> float:
        return _mean_of_measured(recall_TKAM[:, class_index, size, limit])

    counted = [np.asarray(image.class_ids)[~np.asarray(image.is_crowd, bool)] for image in ground_truth]
    class_ids = np.concatenate([np.zeros(0, np.int64), *counted])
    per_class = tuple(
        ClassMetrics(
            class_id=class_id,
            name=name,
            AP=ap(class_index=k),
            AP50=ap(_IOU_50, class_index=k),
            AR100=ar(class_index=k),
            num_boxes=int(np.count_nonzero(class_ids == class_id)),
        )
        for k, (class_id, name) in enumerate(label_map.names_by_id)
    )
    return CocoMetrics(
        AP=ap(),
        AP50=ap(_IOU_50),
        AP75=ap(_IOU_75),
        APs=ap(size=_SMALL),
        APm=ap(size=_MEDIUM),
        APl=ap(size=_LARGE),
        AR1=ar(_MAX_1),
        AR10=ar(_MAX_10),
        AR100=ar(_MAX_100),
        ARs=ar(size=_SMALL),
        ARm=ar(size=_MEDIUM),
        ARl=ar(size=_LARGE),
        per_class=per_class,
        num_images=len(ground_truth),
        num_boxes=len(class_ids),
    )
