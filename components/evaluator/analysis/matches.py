"""Match detections to objects by the COCO API's rules, for a whole split at once.

The COCO API returns means over all images, but error analysis, intervals and operating points need the matches. The
rules equal `COCOeval.evaluateImg` in pycocotools: within an image and class, detections in the order of descending
scores each take the free object with the highest IoU; a crowd takes any number of detections, which are then ignored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from detloom.schemas.contracts.label_map import LabelMap
from detloom.trainer_module.evaluation.coco_images import ImageDetections, ImageGroundTruth

IOU_THRESHOLDS = np.linspace(0.5, 0.95, 10)  # T: 0.50, 0.55, ... 0.95, computed as in pycocotools
IOU_50 = 0  # index of 0.50
MAX_DETECTIONS = 100  # per image and class
_MAX_CELLS = 4_000_000  # IoU values in memory at a time: 32 MB


@dataclass(frozen=True, eq=False, kw_only=True)
class Boxes:
    """Boxes of all images, one row per box.

    Attributes:
        image_index, class_index: int32 [N]; positions in the list of images and in the label map.
        row: int32 [N]; position in the arrays of the image.
        boxes_xywh_px: float64 [N, 4].
    """

    image_index: npt.NDArray[np.int32]
    class_index: npt.NDArray[np.int32]
    row: npt.NDArray[np.int32]
    boxes_xywh_px: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.row)

    def take(self, rows: npt.NDArray[Any]) -> "Boxes":
        return Boxes(
            image_index=self.image_index[rows],
            class_index=self.class_index[rows],
            row=self.row[rows],
            boxes_xywh_px=self.boxes_xywh_px[rows],
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Matches:
    """Detections `N` and objects `G` of a split, with their matches at each IoU threshold `T`.

    Attributes:
        found: at most 100 detections per image and class, sorted by class and descending score; tied scores in the
            order of the images.
        scores: float64 [N].
        truth: objects, sorted by class.
        is_crowd: bool [G].
        truth_of_found_TN: int32; row in `truth`, or -1 for a detection without a match.
    """

    num_images: int
    num_classes: int
    found: Boxes
    scores: npt.NDArray[np.float64]
    truth: Boxes
    is_crowd: npt.NDArray[np.bool_]
    truth_of_found_TN: npt.NDArray[np.int32]

    @cached_property
    def is_ignored_TN(self) -> npt.NDArray[np.bool_]:
        """Detections matched to a crowd: neither true nor false positives."""
        if not self.is_crowd.any():
            return np.zeros_like(self.truth_of_found_TN, bool)
        return (self.truth_of_found_TN >= 0) & self.is_crowd[self.truth_of_found_TN]

    @cached_property
    def is_true_TN(self) -> npt.NDArray[np.bool_]:
        """True positives."""
        return (self.truth_of_found_TN >= 0) & ~self.is_ignored_TN

    @cached_property
    def is_found_TG(self) -> npt.NDArray[np.bool_]:
        """Objects with a matched detection of any score."""
        found = np.zeros((len(self.truth_of_found_TN), len(self.truth)), bool)
        for is_found_G, truth_N in zip(found, self.truth_of_found_TN, strict=True):
            is_found_G[truth_N[truth_N >= 0]] = True
        return found

    def found_of_class(self, class_index: int) -> slice:
        """Return the rows of the detections of a class."""
        return _range_of(self.found.class_index, class_index)

    def truth_of_class(self, class_index: int) -> slice:
        """Return the rows of the objects of a class."""
        return _range_of(self.truth.class_index, class_index)


def pairwise_iou(
    boxes1_xywh_px: npt.NDArray[Any],
    boxes2_xywh_px: npt.NDArray[Any],
    is_crowd2: npt.NDArray[np.bool_] | None = None,
) -> npt.NDArray[np.float64]:
    """Return IoU [..., N, M] of boxes [..., N, 4] with boxes [..., M, 4]; 0 if they do not intersect.

    For crowds in `is_crowd2` [..., M] it is the intersection over the area of the first box (`bbIou` in pycocotools'
    maskApi.c).
    """
    first = np.asarray(boxes1_xywh_px, np.float64)[..., :, np.newaxis, :]
    second = np.asarray(boxes2_xywh_px, np.float64)[..., np.newaxis, :, :]
    start = np.maximum(first[..., :2], second[..., :2])
    sides = np.minimum(first[..., :2] + first[..., 2:], second[..., :2] + second[..., 2:]) - start
    shared = sides[..., 0] * sides[..., 1]
    area1, area2 = first[..., 2] * first[..., 3], second[..., 2] * second[..., 3]
    union = area1 + area2 - shared
    if is_crowd2 is not None:
        union = np.where(np.asarray(is_crowd2)[..., np.newaxis, :], area1, union)
    meet = (sides > 0).all(axis=-1)
    return np.divide(shared, union, out=np.zeros_like(shared), where=meet)


def check_columns(boxes: npt.NDArray[Any], **columns: npt.NDArray[Any]) -> None:
    """Raise ValueError unless `boxes` is [N, 4] and every column has one value for each box."""
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"boxes have shape {boxes.shape}, allowed: [N, 4].")
    for name, values in columns.items():
        if values.shape != (len(boxes),):
            raise ValueError(f"{name} has shape {values.shape}, allowed: ({len(boxes)},), one for each box.")


def match_detections(
    ground_truth: Sequence[ImageGroundTruth], detections: Sequence[ImageDetections], label_map: LabelMap
) -> Matches:
    """Match all detections of a split.

    Args:
        ground_truth, detections: the same images in the same order.

    Raises:
        ValueError: the images differ.
    """
    if [image.image_id for image in ground_truth] != [image.image_id for image in detections]:
        raise ValueError("ground_truth and detections: got different images or orders, allowed: the same.")
    hw = [image.image_hw for image in ground_truth]
    truth = _gather([(image.xywh_px(), image.class_ids) for image in ground_truth], label_map)
    found = _gather(
        [(image.xywh_px(image_hw), image.class_ids) for image, image_hw in zip(detections, hw, strict=True)], label_map
    )
    is_crowd = np.concatenate([np.zeros(0, bool), *(np.asarray(image.is_crowd, bool) for image in ground_truth)])
    scores = np.concatenate([np.zeros(0), *(np.asarray(image.scores, np.float64) for image in detections)])

    # Sort by class and image, crowds after other objects, detections by descending score.
    order = np.lexsort((is_crowd, truth.image_index, truth.class_index))
    truth, is_crowd = truth.take(order), is_crowd[order]
    order = np.lexsort((-scores, found.image_index, found.class_index))
    order = order[_ranks(_group_keys(found.take(order))) < MAX_DETECTIONS]
    found, scores = found.take(order), scores[order]
    truth_of_found_TN = _match_groups(found, truth, is_crowd)
    order = np.lexsort((-scores, found.class_index))  # stable: tied scores keep the order of the images
    return Matches(
        num_images=len(ground_truth),
        num_classes=len(label_map.class_ids),
        found=found.take(order),
        scores=scores[order],
        truth=truth,
        is_crowd=is_crowd,
        truth_of_found_TN=truth_of_found_TN[:, order],
    )


def _gather(images: Sequence[tuple[Any, Any]], label_map: LabelMap) -> Boxes:
    counts = np.array([len(class_ids) for _, class_ids in images], np.int64)
    class_ids = np.concatenate([np.zeros(0, np.int64), *(np.asarray(ids, np.int64) for _, ids in images)])
    known = np.array(label_map.class_ids)
    return Boxes(
        image_index=np.repeat(np.arange(len(images), dtype=np.int32), counts),
        class_index=np.searchsorted(known, class_ids).astype(np.int32),
        row=(np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)).astype(np.int32),
        boxes_xywh_px=np.concatenate([np.zeros((0, 4)), *(boxes for boxes, _ in images)]),
    )


def _group_keys(boxes: Boxes) -> npt.NDArray[np.int64]:
    """Return one number per class and image, ascending in the order of the rows."""
    return boxes.class_index.astype(np.int64) << 32 | boxes.image_index


def _ranks(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the position of each row among the rows with the same key; `keys` are sorted."""
    return np.arange(len(keys)) - np.searchsorted(keys, keys, side="left")


def _match_groups(found: Boxes, truth: Boxes, is_crowd: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    """Compute `truth_of_found_TN` for rows sorted by class, image and score, in chunks of groups of similar size."""
    result_TN = np.full((len(IOU_THRESHOLDS), len(found)), -1, np.int32)
    found_keys, truth_keys = _group_keys(found), _group_keys(truth)
    keys = np.intersect1d(found_keys, truth_keys)
    first_found, first_truth = np.searchsorted(found_keys, keys), np.searchsorted(truth_keys, keys)
    num_found = np.searchsorted(found_keys, keys, side="right") - first_found
    num_truth = np.searchsorted(truth_keys, keys, side="right") - first_truth
    order = np.lexsort((num_found, num_truth))
    start = 0
    while start < len(order):
        # Groups in `order` have an increasing number of objects, which keeps the padding within a chunk small.
        stop = start + 1
        while stop < len(order) and _cells(num_found, num_truth, order[start : 2 * stop - start]) <= _MAX_CELLS:
            stop = min(2 * stop - start, len(order))
        chunk = order[start:stop]
        found_rows = _padded_rows(first_found[chunk], num_found[chunk])
        truth_rows = _padded_rows(first_truth[chunk], num_truth[chunk])
        _match_chunk(found, truth, is_crowd, found_rows, truth_rows, result_TN)
        start = stop
    return result_TN


def _cells(num_found: npt.NDArray[Any], num_truth: npt.NDArray[Any], groups: npt.NDArray[Any]) -> int:
    return len(groups) * int(num_found[groups].max()) * int(num_truth[groups].max())


def _padded_rows(first: npt.NDArray[Any], counts: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the rows of each group, padded with -1: [groups, greatest count]."""
    positions = np.arange(counts.max())
    rows: npt.NDArray[np.int64] = np.where(positions < counts[:, None], first[:, None] + positions, -1)
    return rows


def _match_chunk(
    found: Boxes,
    truth: Boxes,
    is_crowd: npt.NDArray[np.bool_],
    found_rows_BN: npt.NDArray[np.int64],
    truth_rows_BG: npt.NDArray[np.int64],
    result_TN: npt.NDArray[np.int32],
) -> None:
    """Match `B` groups of one image and class each: the best detections of all groups first, then the second ones."""
    crowd_BG = is_crowd[truth_rows_BG]
    iou_BNG = pairwise_iou(found.boxes_xywh_px[found_rows_BN], truth.boxes_xywh_px[truth_rows_BG], crowd_BG)
    iou_BNG *= (truth_rows_BG >= 0)[:, None, :]
    iou_BNG *= (found_rows_BN >= 0)[:, :, None]
    min_iou_T = np.minimum(IOU_THRESHOLDS, 1 - 1e-10)
    is_free_BTG = np.ones((len(truth_rows_BG), len(min_iou_T), truth_rows_BG.shape[1]), bool)
    can_match_BN = iou_BNG.max(axis=2) >= min_iou_T[0]
    for rank in range(found_rows_BN.shape[1]):
        groups = np.flatnonzero(can_match_BN[:, rank])
        if not len(groups):
            continue
        iou_bG, crowd_bG = iou_BNG[groups, rank], crowd_BG[groups]
        is_open_bTG = is_free_BTG[groups] & (iou_bG[:, None, :] >= min_iou_T[:, None])
        usual_bT = _last_greatest(iou_bG, is_open_bTG & ~crowd_bG[:, None, :])
        crowd_bT = _last_greatest(iou_bG, is_open_bTG & crowd_bG[:, None, :])
        chosen_bT = np.where(usual_bT >= 0, usual_bT, crowd_bT)
        position, threshold = np.nonzero(usual_bT >= 0)
        is_free_BTG[groups[position], threshold, usual_bT[position, threshold]] = False
        truth_bT = np.where(chosen_bT >= 0, np.take_along_axis(truth_rows_BG[groups], chosen_bT, axis=1), -1)
        result_TN[:, found_rows_BN[groups, rank]] = truth_bT.T


def _last_greatest(iou_bG: npt.NDArray[np.float64], is_allowed_bTG: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return the position [b, T] of the highest allowed IoU (of ties the last, as in pycocotools), or -1."""
    reversed_bTG = np.where(is_allowed_bTG, iou_bG[:, None, :], -1.0)[..., ::-1]
    position = iou_bG.shape[1] - 1 - reversed_bTG.argmax(axis=2)
    return np.where(is_allowed_bTG.any(axis=2), position, -1)


def _range_of(sorted_values: npt.NDArray[np.int32], value: int) -> slice:
    start, stop = np.searchsorted(sorted_values, [value, value + 1])
    return slice(int(start), int(stop))
