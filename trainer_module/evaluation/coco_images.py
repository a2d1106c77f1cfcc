"""Ground truth and detections of one image for COCO metrics, and their form in COCO's files; no TensorFlow."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from detloom.schemas.contracts.arrays import Array, Float64Array
from detloom.schemas.contracts.label_map import LabelMap
from detloom.trainer_module.boxes.masks import Counts, format_mask


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
        mask_counts: bytes [G], see `masks.py`; None without masks.
        keypoints_yx_rel: float [G, P, 2], NaN where not labelled; None without keypoints.
    """

    image_id: int
    image_hw: tuple[int, int]
    boxes_yxyx_rel: Array
    class_ids: Array
    is_crowd: Array
    area_px: Array | None = None
    is_difficult: Array | None = None
    is_group_of: Array | None = None
    verified_class_ids: tuple[int, ...] = ()
    given_xywh_px: Array | None = None
    mask_counts: Counts | None = None
    keypoints_yx_rel: Array | None = None

    def __post_init__(self) -> None:
        columns = {"class_ids": self.class_ids, "is_crowd": self.is_crowd}
        for name in ("area_px", "is_difficult", "is_group_of", "mask_counts"):
            if getattr(self, name) is not None:
                columns[name] = getattr(self, name)
        _check_lengths(f"ground truth of image {self.image_id}", self.boxes_yxyx_rel, columns)

    def xywh_px(self) -> Float64Array:
        """Return COCO boxes, float64 [G, 4]."""
        if self.given_xywh_px is not None:
            return np.asarray(self.given_xywh_px, np.float64).reshape(-1, 4)
        return boxes_yxyx_rel_to_xywh_px(self.boxes_yxyx_rel, self.image_hw)


@dataclass(frozen=True, eq=False)
class ImageDetections:
    """Detections in one image: `boxes_yxyx_rel` float [N, 4], `scores` float [N], `class_ids` int [N].

    `given_xywh_px` float [N, 4] are the same boxes in a file's pixels, as in `ImageGroundTruth`. Of a detector with
    masks, `mask_counts` bytes [N] are over the image; of one with keypoints, `keypoints_yx_rel` is float [N, P, 2] and
    `keypoint_scores` float [N, P].
    """

    image_id: int
    boxes_yxyx_rel: Array
    scores: Array
    class_ids: Array
    given_xywh_px: Array | None = None
    mask_counts: Counts | None = None
    keypoints_yx_rel: Array | None = None
    keypoint_scores: Array | None = None

    def __post_init__(self) -> None:
        columns = {"scores": self.scores, "class_ids": self.class_ids}
        if self.mask_counts is not None:
            columns["mask_counts"] = self.mask_counts
        _check_lengths(f"detections of image {self.image_id}", self.boxes_yxyx_rel, columns)

    def xywh_px(self, image_hw: tuple[int, int]) -> Float64Array:
        """Return COCO boxes, float64 [N, 4]."""
        if self.given_xywh_px is not None:
            return np.asarray(self.given_xywh_px, np.float64).reshape(-1, 4)
        return boxes_yxyx_rel_to_xywh_px(self.boxes_yxyx_rel, image_hw)


def boxes_yxyx_rel_to_xywh_px(boxes_yxyx_rel: npt.ArrayLike, image_hw: npt.ArrayLike) -> Float64Array:
    """Convert to COCO's JSON boxes (left, top, width, height in pixels), float64 [N, 4].

    Args:
        image_hw: the size of the image, or of the image of each box [N, 2].
    """
    boxes_px = np.asarray(boxes_yxyx_rel, np.float64).reshape(-1, 4) * np.tile(image_hw, 2)
    boxes_px[:, 2:] -= boxes_px[:, :2]
    return boxes_px[:, [1, 0, 3, 2]]


def boxes_xywh_px_to_yxyx_rel(boxes_xywh_px: npt.ArrayLike, image_hw: tuple[int, int]) -> Float64Array:
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
        columns = {
            "category_id": np.asarray(image.class_ids).astype(int).tolist(),
            "bbox": boxes_xywh_px.tolist(),
            "area": np.asarray(areas, np.float64).tolist(),
            "iscrowd": np.asarray(image.is_crowd).astype(int).tolist(),
            **_masks_column(image, image.image_hw),
        }
        if image.keypoints_yx_rel is not None:
            points_xyv_px = points_yx_rel_to_xyv_px(image.keypoints_yx_rel, image.image_hw, 2.0)
            columns["keypoints"] = [points.ravel().tolist() for points in points_xyv_px]
            columns["num_keypoints"] = (points_xyv_px[..., 2] > 0).sum(axis=-1).tolist()
        for row in _rows(image.image_id, columns):
            if row.get("num_keypoints") == 0:
                del row["keypoints"], row["num_keypoints"]
            # Ids start at 1: the COCO API treats a match with id 0 as no match.
            annotations.append({"id": len(annotations) + 1, **row})
    categories = [{"id": class_id, "name": name} for class_id, name in label_map.names_by_id]
    return {"info": {}, "images": images, "categories": categories, "annotations": annotations}


def format_coco_results(
    detections: Iterable[ImageDetections], hw_by_id: Mapping[int, tuple[int, int]]
) -> list[dict[str, Any]]:
    """Format detections like a COCO results file; `hw_by_id` has the image sizes."""
    rows: list[dict[str, Any]] = []
    for image in detections:
        image_hw = hw_by_id[image.image_id]
        columns = {
            "category_id": np.asarray(image.class_ids).astype(int).tolist(),
            "bbox": image.xywh_px(image_hw).tolist(),
            "score": np.asarray(image.scores, np.float64).tolist(),
            **_masks_column(image, image_hw),
        }
        if image.keypoints_yx_rel is not None:
            scores = 1.0 if image.keypoint_scores is None else np.asarray(image.keypoint_scores, np.float64)
            points_xyv_px = points_yx_rel_to_xyv_px(image.keypoints_yx_rel, image_hw, scores)
            columns["keypoints"] = [points.ravel().tolist() for points in points_xyv_px]
        rows += _rows(image.image_id, columns)
    return rows


def _rows(image_id: int, columns: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    for values in zip(*columns.values(), strict=True):
        yield {"image_id": image_id, **dict(zip(columns, values, strict=True))}


def _masks_column(image: ImageGroundTruth | ImageDetections, image_hw: tuple[int, int]) -> dict[str, list[Any]]:
    if image.mask_counts is None:
        return {}
    return {"segmentation": [format_mask(counts, image_hw) for counts in image.mask_counts]}


def points_yx_rel_to_xyv_px(points_yx_rel: Array, image_hw: tuple[int, int], value: npt.ArrayLike) -> Float64Array:
    """Convert keypoints [N, P, 2] to x, y in pixels and `value`, float64 [N, P, 3]; NaN becomes 0, 0, 0."""
    points = np.asarray(points_yx_rel, np.float64)
    height, width = image_hw
    values = np.broadcast_to(np.asarray(value, np.float64), points.shape[:-1])
    points_xyv_px = np.stack([points[..., 1] * width, points[..., 0] * height, values], axis=-1)
    return np.where(np.isnan(points).any(axis=-1, keepdims=True), 0.0, points_xyv_px)


def _check_lengths(what: str, boxes: Array, columns: Mapping[str, Array]) -> None:
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"{what}: boxes_yxyx_rel has shape {boxes.shape}, allowed: [N, 4].")
    for name, values in columns.items():
        if values.shape != (len(boxes),):
            raise ValueError(f"{what}: {name} has shape {values.shape}, allowed: ({len(boxes)},), one for each box.")
