"""Which detection found which object, by the COCO API's rules, for a whole split at once.

What the COCO API answers are means over all images; error analysis, intervals and operating points need the matches
themselves. The rules are those of `COCOeval.evaluateImg` in pycocotools: within an image and class, detections in the
order of their scores each take the free object with the greatest overlap; a crowd takes any number, and what it takes
counts neither way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from detloom.components.evaluator.analysis.overlaps import pairwise_iou
from detloom.schemas.label_map import LabelMap
from detloom.trainer_module.coco_metrics import ImageDetections, ImageGroundTruth

IOU_THRESHOLDS = np.linspace(0.5, 0.95, 10)  # T: 0.50, 0.55, ... 0.95, as pycocotools makes them
IOU_50 = 0  # the first of them
MAX_DETECTIONS = 100  # an image and class
_MAX_CELLS = 4_000_000  # overlaps held at a time: 32 MB


@dataclass(frozen=True, eq=False, kw_only=True)
class Boxes:
    """Boxes of all images, one row a box.

    Attributes:
        image_index, class_index: int32 [N]; positions in the list of images and in the label map.
        row: int32 [N], position in the arrays of its image.
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
    """Detections `N` and objects `G` of a split, and which belong together at each IoU threshold `T`.

    Attributes:
        found: detections, at most 100 an image and class, by class and then by descending score; equal scores in the
            order of the images.
        scores: float64 [N].
        truth: objects, by class.
        is_crowd: bool [G].
        truth_of_found_TN: int32, row in `truth`; -1 for a detection that found nothing.
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
        """Found a crowd: neither right nor wrong."""
        if not self.is_crowd.any():
            return np.zeros_like(self.truth_of_found_TN, bool)
        return (self.truth_of_found_TN >= 0) & self.is_crowd[self.truth_of_found_TN]

    @cached_property
    def is_true_TN(self) -> npt.NDArray[np.bool_]:
        """Found an object that nothing with a higher score had found."""
        return (self.truth_of_found_TN >= 0) & ~self.is_ignored_TN

    @cached_property
    def is_found_TG(self) -> npt.NDArray[np.bool_]:
        """Objects that a detection of any score found."""
        found = np.zeros((len(self.truth_of_found_TN), len(self.truth)), bool)
        for is_found_G, truth_N in zip(found, self.truth_of_found_TN, strict=True):
            is_found_G[truth_N[truth_N >= 0]] = True
        return found

    def found_of_class(self, class_index: int) -> slice:
        """Rows of the detections of a class."""
        return _range_of(self.found.class_index, class_index)

    def truth_of_class(self, class_index: int) -> slice:
        """Rows of the objects of a class."""
        return _range_of(self.truth.class_index, class_index)


def match_detections(
    ground_truth: Sequence[ImageGroundTruth], detections: Sequence[ImageDetections], label_map: LabelMap
) -> Matches:
    """Match all detections of a split.

    Args:
        ground_truth, detections: of the same images in the same order.

    Raises:
        ValueError: the images are not the same.
    """
    if [image.image_id for image in ground_truth] != [image.image_id for image in detections]:
        raise ValueError("ground truth and detections: got other images or another order, needed: the same.")
    hw = [image.image_hw for image in ground_truth]
    truth = _gather([(image.xywh_px(), image.class_ids) for image in ground_truth], label_map)
    found = _gather(
        [(image.xywh_px(image_hw), image.class_ids) for image, image_hw in zip(detections, hw, strict=True)], label_map
    )
    is_crowd = np.concatenate([np.zeros(0, bool), *(np.asarray(image.is_crowd, bool) for image in ground_truth)])
    scores = np.concatenate([np.zeros(0), *(np.asarray(image.scores, np.float64) for image in detections)])

    # By class and image; crowds behind the others, detections by descending score.
    order = np.lexsort((is_crowd, truth.image_index, truth.class_index))
    truth, is_crowd = truth.take(order), is_crowd[order]
    order = np.lexsort((-scores, found.image_index, found.class_index))
    order = order[_ranks(_group_keys(found.take(order))) < MAX_DETECTIONS]
    found, scores = found.take(order), scores[order]
    truth_of_found_TN = _match_groups(found, truth, is_crowd)
    order = np.lexsort((-scores, found.class_index))  # stable: equal scores stay in the order of the images
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
    """One number for each class and image, rising in the order of the rows."""
    return boxes.class_index.astype(np.int64) << 32 | boxes.image_index


def _ranks(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Position of each row among those with its key; `keys` are sorted."""
    return np.arange(len(keys)) - np.searchsorted(keys, keys, side="left")


def _match_groups(found: Boxes, truth: Boxes, is_crowd: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    """`truth_of_found_TN` of rows that are sorted by class, image, and score; groups of one size go together."""
    result_TN = np.full((len(IOU_THRESHOLDS), len(found)), -1, np.int32)
    found_keys, truth_keys = _group_keys(found), _group_keys(truth)
    keys = np.intersect1d(found_keys, truth_keys)
    first_found, first_truth = np.searchsorted(found_keys, keys), np.searchsorted(truth_keys, keys)
    num_found = np.searchsorted(found_keys, keys, side="right") - first_found
    num_truth = np.searchsorted(truth_keys, keys, side="right") - first_truth
    order = np.lexsort((num_found, num_truth))
    start = 0
    while start < len(order):
        # What comes later in `order` has more objects, so that the padding of a chunk stays small.
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
    """[groups, greatest count]: the rows of each group, then -1."""
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
    """Match `B` groups of an image and class each; the best detection of every group first, then the second."""
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
    """[b, T]: position of the greatest allowed overlap, of equal ones the last as in pycocotools; -1 for none."""
    reversed_bTG = np.where(is_allowed_bTG, iou_bG[:, None, :], -1.0)[..., ::-1]
    position = iou_bG.shape[1] - 1 - reversed_bTG.argmax(axis=2)
    return np.where(is_allowed_bTG.any(axis=2), position, -1)


def _range_of(sorted_values: npt.NDArray[np.int32], value: int) -> slice:
    start, stop = np.searchsorted(sorted_values, [value, value + 1])
    return slice(int(start), int(stop))
