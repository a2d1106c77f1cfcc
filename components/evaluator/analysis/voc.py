"""PASCAL VOC and Open Images AP by the rules of the TF Object Detection API's evaluators, in numpy.

Equal to the API's `object_detection_evaluation.py`, including the order of tied scores. In `VOC_RULES`, `pascal_voc`,
`weighted_pascal_voc`, `open_images_v2` and `open_images_challenge` correspond to its PascalDetectionEvaluator,
WeightedPascalDetectionEvaluator, OpenImagesDetectionEvaluator and OpenImagesChallengeEvaluator; it has no
`pascal_voc_2007`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from detloom.schemas.contracts.arrays import Array, BoolArray, Float32Array
from detloom.trainer_module.evaluation.coco_images import ImageDetections, ImageGroundTruth
from detloom.trainer_module.evaluation.image_table import ImageTable
from detloom.trainer_module.evaluation.matches import BLOCK_IMAGES, class_keys, padded_groups

NUM_RECALL_INTERVALS_2007 = 10  # eleven points: recall 0, 0.1, ... 1


@dataclass(frozen=True, kw_only=True)
class VocRules:
    """The settings that distinguish the challenges.

    Attributes:
        has_difficult: use `is_difficult`: detections on a difficult object are neither true nor false positives.
        group_of_weight: number of objects that a group-of box counts as, found or missed. A group is found by a
            detection of which at least `min_iou` of the area is inside it; further detections in it are ignored. With
            0 all detections in it are ignored. None: a group-of box is an ordinary object. A crowd is a group.
        drops_unverified: ignore detections of a class in images that have no object of the class and do not list it in
            `verified_class_ids`.
        is_weighted: mAP is the AP of one curve over all classes instead of the mean AP of the classes.
        recall_points: "all" for the area under the curve (since VOC 2010), "eleven" for the mean of eleven precisions
            (VOC 2007).
    """

    has_difficult: bool = False
    group_of_weight: float | None = None
    drops_unverified: bool = False
    is_weighted: bool = False
    recall_points: Literal["all", "eleven"] = "all"

    @property
    def matching(self) -> tuple[bool, float | None, bool]:
        """The fields that matter for the matches."""
        return self.has_difficult, self.group_of_weight, self.drops_unverified


VOC_RULES = {
    "pascal_voc": VocRules(has_difficult=True),
    "pascal_voc_2007": VocRules(has_difficult=True, recall_points="eleven"),
    "weighted_pascal_voc": VocRules(has_difficult=True, is_weighted=True),
    "open_images_v2": VocRules(group_of_weight=0.0),
    "open_images_challenge": VocRules(group_of_weight=1.0, drops_unverified=True),
}


@dataclass(frozen=True, kw_only=True)
class VocMetrics:
    """AP from 0 to 1, or None if no ground truth of the class (for mAP: of any class) counts.

    `num_truth_by_class_id` is the denominator of recall: difficult objects are excluded, groups count by their weight.
    """

    mAP: float | None
    AP_by_class_id: dict[int, float | None]
    num_truth_by_class_id: dict[int, float]


@dataclass(frozen=True, eq=False)
class _Labelled:
    """Objects and detections that count, the detections of a class in the order of the images.

    Attributes:
        num_truth_K: number of objects of each class.
        class_index_N, scores_N: of the detections.
        weights_N: 0 for a false positive, 1 for a true positive, or a group's weight.
    """

    num_truth_K: Array
    class_index_N: Array
    scores_N: Array
    weights_N: Array


def compute_voc_metrics(
    truth: ImageTable[ImageGroundTruth],
    found: ImageTable[ImageDetections],
    class_ids: Sequence[int],
    rules_by_name: Mapping[str, VocRules] = VOC_RULES,
    *,
    min_iou: float = 0.5,
) -> dict[str, VocMetrics]:
    """Match detections to ground truth in each image, and summarize by class, for each set of rules.

    Ground truth, and detections, of classes that are not in `class_ids` are ignored, as are boxes without area. The
    order of images matters only for tied scores of different images.

    Args:
        truth, found: the same images in the same order.
        class_ids: ascending.
    """
    parts: dict[tuple[bool, float | None, bool], list[_Labelled]] = {}
    for start in range(0, max(len(truth), 1), BLOCK_IMAGES):
        block = _VocBlock(truth, found, class_ids, slice(start, min(start + BLOCK_IMAGES, len(truth))), min_iou)
        for rules in {rules.matching: rules for rules in rules_by_name.values()}.values():
            parts.setdefault(rules.matching, []).append(block.label(rules))
    joined = {matching: _join(of_blocks) for matching, of_blocks in parts.items()}
    return {name: _summarize(joined[rules.matching], class_ids, rules) for name, rules in rules_by_name.items()}


class _VocBlock:
    """Consecutive images, whose boxes are matched together.

    Boxes are float32, as in the reference: IoU equals the reference only for this type.
    """

    def __init__(
        self,
        truth: ImageTable[ImageGroundTruth],
        found: ImageTable[ImageDetections],
        class_ids: Sequence[int],
        images: slice,
        min_iou: float,
    ) -> None:
        start, stop = images.start, images.stop
        self._num_classes, self._min_iou = len(class_ids), min_iou
        rows = truth.rows(start, stop)
        is_known = np.isin(truth.columns["class_ids"][rows], class_ids)
        keys = class_keys(truth, start, stop, class_ids)[is_known]
        order = np.argsort(keys, kind="stable")
        self._truth_keys = keys[order]
        self._truth_boxes = _boxes_yxyx_px(truth, truth, start, stop)[is_known][order]
        self._is_difficult = _flags(truth, "is_difficult", rows)[is_known][order]
        is_group_of = _flags(truth, "is_group_of", rows) | _flags(truth, "is_crowd", rows)
        self._is_group_of = is_group_of[is_known][order]

        boxes = _boxes_yxyx_px(found, truth, start, stop)
        rows = found.rows(start, stop)
        is_kept = np.isin(found.columns["class_ids"][rows], class_ids) & (boxes[:, :2] < boxes[:, 2:]).all(axis=1)
        keys, scores = class_keys(found, start, stop, class_ids)[is_kept], found.columns["scores"][rows][is_kept]
        order = _by_descending_score(keys, scores)
        self._keys, self._scores, self._boxes = keys[order], scores[order], boxes[is_kept][order]
        verified = [
            (np.searchsorted(class_ids, class_id) << 32) | (image - start)
            for image, image_class_ids in truth.verified.items()
            if start <= image < stop
            for class_id in set(image_class_ids).intersection(class_ids)
        ]
        self._is_verified = np.isin(self._keys, self._truth_keys) | np.isin(self._keys, np.array(verified, np.int64))

    def label(self, rules: VocRules) -> _Labelled:
        """Label each detection as true positive, false positive or ignored."""
        is_group = self._is_group_of & (rules.group_of_weight is not None)
        is_difficult = np.append(self._is_difficult & rules.has_difficult, False)  # for detections without an object
        # A detection can only match its best object, even if that one is taken and the second best is free.
        best, iou = self._best_overlaps(~is_group, _pairwise_iou)
        is_match = iou >= self._min_iou
        is_ignored = is_match & is_difficult[best]
        candidates = np.flatnonzero(is_match & ~is_ignored)
        _, first = np.unique(best[candidates], return_index=True)
        is_right = np.zeros(len(best), bool)
        is_right[candidates[first]] = True

        group_weight = rules.group_of_weight or 0.0
        group_scores = np.zeros(len(is_group), self._scores.dtype)
        if is_group.any():
            group, share = self._best_overlaps(is_group, _share_inside)
            is_inside = (share >= self._min_iou) & ~is_right & ~is_ignored
            is_ignored |= is_inside
            if group_weight > 0:
                np.maximum.at(group_scores, group[is_inside], self._scores[is_inside])
        is_found_group = group_scores > 0
        if rules.drops_unverified:
            is_ignored |= ~self._is_verified
        is_counted = ~is_ignored
        keys = np.concatenate([self._keys[is_counted], self._truth_keys[is_found_group]])
        scores = np.concatenate([self._scores[is_counted], group_scores[is_found_group]])
        weights = np.concatenate([is_right[is_counted], np.full(np.count_nonzero(is_found_group), group_weight)])
        order = np.argsort(keys, kind="stable")
        truth_weights = np.where(is_group, group_weight, 1.0) * ~is_difficult[:-1]
        return _Labelled(
            num_truth_K=np.bincount(self._truth_keys >> 32, truth_weights, minlength=self._num_classes),
            class_index_N=(keys[order] >> 32).astype(np.int32),
            scores_N=scores[order],
            weights_N=weights[order].astype(np.float32),
        )

    def _best_overlaps(self, is_object: Array, overlap: Callable[[Array, Array], Array]) -> tuple[Array, Array]:
        """Return the object [N] of the same class and image with the greatest overlap (of ties the first), or -1.

        The second array [N] has the overlaps.
        """
        best, greatest = np.full(len(self._keys), -1), np.full(len(self._keys), -1.0)
        objects = np.flatnonzero(is_object)
        groups = padded_groups(self._keys, self._truth_keys[objects], np.arange(len(best)), objects)
        for rows_BN, objects_BG in groups:
            overlap_BNG = overlap(self._boxes[rows_BN], self._truth_boxes[objects_BG])
            overlap_BNG = np.where(objects_BG[:, np.newaxis] >= 0, overlap_BNG, -1.0)
            column_BN, is_row_BN = overlap_BNG.argmax(axis=2), rows_BN >= 0
            best[rows_BN[is_row_BN]] = np.take_along_axis(objects_BG, column_BN, axis=1)[is_row_BN]
            greatest[rows_BN[is_row_BN]] = overlap_BNG.max(axis=2)[is_row_BN]
        return best, greatest


def _boxes_yxyx_px(images: ImageTable[Any], truth: ImageTable[ImageGroundTruth], start: int, stop: int) -> Float32Array:
    hw_N2 = truth.image_hw_I2[start:stop][images.image_index(start, stop)]
    boxes_rel = images.columns["boxes_yxyx_rel"][images.rows(start, stop)].astype(np.float64)
    boxes_px: Float32Array = (boxes_rel * np.tile(hw_N2, 2)).astype(np.float32)
    return boxes_px


def _flags(truth: ImageTable[ImageGroundTruth], name: str, rows: slice) -> BoolArray:
    if name not in truth.columns:
        return np.zeros(rows.stop - rows.start, bool)
    return truth.columns[name][rows].astype(bool)


def _by_descending_score(keys: Array, scores: Array) -> Array:
    """Return the order by keys, and by descending score among equal keys."""
    order = np.argsort(keys, kind="stable")
    starts = np.unique(keys[order], return_index=True)[1]
    for rows in np.split(order, starts[1:]):
        rows[:] = rows[_descending(scores[rows])]
    return order


def _descending(scores: Array) -> Array:
    """Sort by descending score; tied scores are ordered as in the reference, which reverses numpy's unstable sort.

    The order of ties changes AP. For float32 and float64, numpy may sort with vector instructions, which order ties
    differently; it has none for long doubles, whose comparisons give the same results.
    """
    return np.argsort(scores.astype(np.longdouble))[::-1]


def _areas(boxes_yxyx: Array) -> Array:
    sides = boxes_yxyx[..., 2:] - boxes_yxyx[..., :2]
    areas: Array = sides[..., 0] * sides[..., 1]
    return areas


def _intersections(boxes1_yxyx: Array, boxes2_yxyx: Array) -> Array:
    """Return intersections, float64 [..., N, M]; sides are computed in the boxes' dtype, as in the reference."""
    first, second = boxes1_yxyx[..., :, np.newaxis, :], boxes2_yxyx[..., np.newaxis, :, :]
    sides = np.minimum(first[..., 2:], second[..., 2:]) - np.maximum(first[..., :2], second[..., :2])
    sides = np.maximum(sides, 0).astype(float)
    products: Array = sides[..., 0] * sides[..., 1]
    return products


def _pairwise_iou(boxes1_yxyx: Array, boxes2_yxyx: Array) -> Array:
    intersections = _intersections(boxes1_yxyx, boxes2_yxyx)
    areas = _areas(boxes1_yxyx)[..., :, np.newaxis] + _areas(boxes2_yxyx)[..., np.newaxis, :]
    ious: Array = intersections / (areas - intersections)
    return ious


def _share_inside(boxes1_yxyx: Array, boxes2_yxyx: Array) -> Array:
    """Return the share of the area of each first box that is inside each second one."""
    shares: Array = _intersections(boxes1_yxyx, boxes2_yxyx) / _areas(boxes1_yxyx)[..., :, np.newaxis]
    return shares


def _join(blocks: Sequence[_Labelled]) -> _Labelled:
    class_index = np.concatenate([block.class_index_N for block in blocks])
    order = np.argsort(class_index, kind="stable")
    return _Labelled(
        num_truth_K=np.sum([block.num_truth_K for block in blocks], axis=0),
        class_index_N=class_index[order],
        scores_N=np.concatenate([block.scores_N for block in blocks])[order],
        weights_N=np.concatenate([block.weights_N for block in blocks])[order],
    )


def _summarize(labelled: _Labelled, class_ids: Sequence[int], rules: VocRules) -> VocMetrics:
    num_truth: list[float] = labelled.num_truth_K.tolist()
    AP_by_class_id: dict[int, float | None] = dict.fromkeys(class_ids)
    for k, class_id in enumerate(class_ids):
        if num_truth[k] > 0:
            rows = slice(*np.searchsorted(labelled.class_index_N, [k, k + 1]))
            AP_by_class_id[class_id] = _average_precision(labelled, rows, num_truth[k], rules)
    measured = [AP for AP in AP_by_class_id.values() if AP is not None]
    mAP: float | None = None
    if measured and rules.is_weighted:
        rows_with_truth = labelled.num_truth_K[labelled.class_index_N] > 0
        mAP = _average_precision(labelled, rows_with_truth, sum(num_truth), rules)
    elif measured:
        mAP = float(np.mean(measured))
    return VocMetrics(
        mAP=mAP, AP_by_class_id=AP_by_class_id, num_truth_by_class_id=dict(zip(class_ids, num_truth, strict=True))
    )


def _average_precision(labelled: _Labelled, rows: slice | Array, num_truth: float, rules: VocRules) -> float:
    weights = labelled.weights_N[rows][_descending(labelled.scores_N[rows])]
    num_right = np.cumsum(weights, dtype=np.float64)
    # The added points close the curve at recall 0 and at recall 1 with precision 0.
    precisions = np.concatenate([num_right / (num_right + np.cumsum(weights <= 0)), [0.0]])
    recalls = np.concatenate([[0.0], num_right / num_truth, [1.0]])
    precisions = np.maximum.accumulate(precisions[::-1])[::-1]  # the highest precision at this or a higher recall
    if rules.recall_points == "all":
        return float(np.sum(np.diff(recalls) * precisions))
    points = np.arange(NUM_RECALL_INTERVALS_2007 + 1) / NUM_RECALL_INTERVALS_2007
    at = np.searchsorted(recalls[1:-1], points)  # the first detection that reaches the recall, or the end
    return float(np.mean(precisions[at]))
