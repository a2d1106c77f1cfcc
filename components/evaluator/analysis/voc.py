"""PASCAL VOC and Open Images AP by the rules of the TF Object Detection API's evaluators, in numpy.

Equal to the API's `object_detection_evaluation.py`, including the order of tied scores. In `VOC_RULES`, `pascal_voc`,
`weighted_pascal_voc`, `open_images_v2` and `open_images_challenge` correspond to its PascalDetectionEvaluator,
WeightedPascalDetectionEvaluator, OpenImagesDetectionEvaluator and OpenImagesChallengeEvaluator; it has no
`pascal_voc_2007`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from detloom.trainer_module.evaluation.matches import check_columns

Array = npt.NDArray[Any]

_JOINED_IMAGES = 4096  # images whose results are joined at a time
NUM_RECALL_INTERVALS_2007 = 10  # eleven points: recall 0, 0.1, ... 1


@dataclass(frozen=True, eq=False, kw_only=True)
class VocImage:
    """Ground truth and detections of one image.

    Boxes keep their dtype: IoU equals the reference only for the dtype that the reference got (float32).

    Attributes:
        truth_boxes_yxyx_px: float [G, 4].
        truth_class_ids: int [G].
        is_difficult: bool [G]; detections on a difficult object are neither true nor false positives.
        is_group_of: bool [G]; one box around many objects.
        boxes_yxyx_px: float [N, 4]; boxes without area are ignored.
        scores: float [N].
        class_ids: int [N].
        verified_class_ids: classes that were verified as present in or absent from the image.
    """

    truth_boxes_yxyx_px: Array
    truth_class_ids: Array
    is_difficult: Array
    is_group_of: Array
    boxes_yxyx_px: Array
    scores: Array
    class_ids: Array
    verified_class_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_columns(
            self.truth_boxes_yxyx_px,
            truth_class_ids=self.truth_class_ids,
            is_difficult=self.is_difficult,
            is_group_of=self.is_group_of,
        )
        check_columns(self.boxes_yxyx_px, scores=self.scores, class_ids=self.class_ids)


@dataclass(frozen=True, kw_only=True)
class VocRules:
    """The settings that distinguish the challenges.

    Attributes:
        has_difficult: use `is_difficult`.
        group_of_weight: number of objects that a group-of box counts as, found or missed. A group is found by a
            detection of which at least `min_iou` of the area is inside it; further detections in it are ignored. With
            0 all detections in it are ignored. None: a group-of box is an ordinary object.
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
    """Counted detections: `scores` [N] and `weights` [N] (0: false positive, 1: true positive, or a group's weight)."""

    scores: Array
    weights: Array


@dataclass(frozen=True, eq=False)
class _Split:
    """The input of the curves, by class."""

    num_truth: dict[int, float]
    labelled: dict[int, _Labelled]


def compute_voc_metrics(
    images: Iterable[VocImage],
    class_ids: Sequence[int],
    rules_by_name: Mapping[str, VocRules] = VOC_RULES,
    *,
    min_iou: float = 0.5,
) -> dict[str, VocMetrics]:
    """Match detections to ground truth in each image, and summarize by class, for each set of rules.

    Rules that match an image alike share the matching. Ground truth and detections of classes that are not in
    `class_ids` are ignored. The order of images matters only for tied scores of different images.
    """
    splits = {
        (_matching_of(rules), rules.drops_unverified): _SplitBuilder(class_ids) for rules in rules_by_name.values()
    }
    for image in images:
        results: dict[_Matching, tuple[dict[int, float], dict[int, _Labelled]]] = {}
        for (matching, drops_unverified), split in splits.items():
            needed = matching.needed_by(image)
            if needed not in results:
                results[needed] = _label_image(image, needed, min_iou)
            num_truth, labelled = results[needed]
            if drops_unverified:
                verified = {*num_truth, *image.verified_class_ids}
                labelled = {class_id: part for class_id, part in labelled.items() if class_id in verified}
            split.add(num_truth, labelled)
    built = {key: split.build() for key, split in splits.items()}
    return {
        name: _summarize(built[_matching_of(rules), rules.drops_unverified], rules)
        for name, rules in rules_by_name.items()
    }


class _Matching(NamedTuple):
    """The fields of `VocRules` that matter for matching."""

    has_difficult: bool
    group_of_weight: float | None

    def needed_by(self, image: VocImage) -> "_Matching":
        """Return rules that match the image alike, the same ones for as many rules as possible."""
        has_difficult = self.has_difficult and bool(image.is_difficult.any())
        return _Matching(has_difficult, self.group_of_weight if image.is_group_of.any() else None)


def _matching_of(rules: VocRules) -> _Matching:
    return _Matching(rules.has_difficult, rules.group_of_weight)


class _SplitBuilder:
    """Collect the results of the images of a split."""

    def __init__(self, class_ids: Sequence[int]) -> None:
        self._num_truth = dict.fromkeys(class_ids, 0.0)
        self._parts: dict[int, list[_Labelled]] = {class_id: [] for class_id in class_ids}
        self._joined: dict[int, list[_Labelled]] = {class_id: [] for class_id in class_ids}
        self._num_waiting = 0

    def add(self, num_truth: Mapping[int, float], labelled: Mapping[int, _Labelled]) -> None:
        for class_id in num_truth.keys() & self._num_truth.keys():
            self._num_truth[class_id] += num_truth[class_id]
        for class_id in labelled.keys() & self._parts.keys():
            self._parts[class_id].append(labelled[class_id])
        self._num_waiting += 1
        if self._num_waiting == _JOINED_IMAGES:
            self._join_parts()

    def _join_parts(self) -> None:
        for class_id, parts in self._parts.items():
            self._joined[class_id].append(_join(parts))
            parts.clear()
        self._num_waiting = 0

    def build(self) -> _Split:
        """Return the result; the builder must not be used afterwards."""
        self._join_parts()
        return _Split(self._num_truth, {class_id: _join(self._joined.pop(class_id)) for class_id in self._num_truth})


def _label_image(image: VocImage, rules: _Matching, min_iou: float) -> tuple[dict[int, float], dict[int, _Labelled]]:
    """Return the ground truth and the labelled detections of an image by class."""
    num_shown = _count_truth(image, rules)
    labelled = {
        class_id: _label_class(image, class_id, rows, rules, min_iou)
        if class_id in num_shown
        else _Labelled(image.scores[rows], np.zeros(len(rows), np.float32))
        for class_id, rows in _detection_rows_by_class(image)
    }
    return num_shown, labelled


def _summarize(split: _Split, rules: VocRules) -> VocMetrics:
    measured = [class_id for class_id, count in split.num_truth.items() if count > 0]
    AP_by_class_id: dict[int, float | None] = dict.fromkeys(split.num_truth)
    for class_id in measured:
        AP_by_class_id[class_id] = _average_precision(split.labelled[class_id], split.num_truth[class_id], rules)
    mAP: float | None = None
    if measured and rules.is_weighted:
        joined = _join([split.labelled[class_id] for class_id in measured])
        mAP = _average_precision(joined, sum(split.num_truth.values()), rules)
    elif measured:
        mAP = float(np.mean([AP for AP in AP_by_class_id.values() if AP is not None]))
    return VocMetrics(mAP=mAP, AP_by_class_id=AP_by_class_id, num_truth_by_class_id=dict(split.num_truth))


def _flags(image: VocImage, rules: _Matching) -> tuple[Array, Array]:
    """Return difficult [G] and group-of [G] as the rules use them."""
    none = np.zeros(len(image.truth_class_ids), bool)
    is_difficult = image.is_difficult.astype(bool) if rules.has_difficult else none
    is_group_of = none if rules.group_of_weight is None else image.is_group_of.astype(bool)
    return is_difficult, is_group_of


def _count_truth(image: VocImage, rules: _Matching) -> dict[int, float]:
    """Count the ground truth of each class in the image; 0 if all of it is difficult or groups of weight 0."""
    is_difficult, is_group_of = _flags(image, rules)
    weights = np.where(is_group_of, rules.group_of_weight or 0.0, 1.0)
    counts: dict[int, float] = {}
    for class_id, weight in zip(image.truth_class_ids.tolist(), (weights * ~is_difficult).tolist(), strict=True):
        counts[class_id] = counts.get(class_id, 0.0) + weight
    return counts


def _detection_rows_by_class(image: VocImage) -> Iterator[tuple[int, Array]]:
    """Yield, for each class, the rows of its detections that count, by descending score."""
    ymin, xmin, ymax, xmax = image.boxes_yxyx_px.T
    is_kept = (ymin < ymax) & (xmin < xmax)
    rows = np.flatnonzero(is_kept)
    rows = rows[np.argsort(image.class_ids[rows], kind="stable")]
    found_ids, starts = np.unique(image.class_ids[rows], return_index=True)
    long_scores = image.scores[rows].astype(np.longdouble)
    ends = np.append(starts, len(rows))[1:]
    for class_id, start, end in zip(found_ids.tolist(), starts.tolist(), ends.tolist(), strict=True):
        yield class_id, rows[start:end][_descending(long_scores[start:end])]


def _descending(long_scores: Array) -> Array:
    """Sort by descending score; tied scores are ordered as in the reference, which reverses numpy's unstable sort.

    The order of ties changes AP. For float32 and float64, numpy may sort with vector instructions, which order ties
    differently; it has none for long doubles, whose comparisons give the same results.
    """
    return np.argsort(long_scores)[::-1]


def _label_class(image: VocImage, class_id: int, rows: Array, rules: _Matching, min_iou: float) -> _Labelled:
    """Label the detections `rows` of one class, in that order, as true positive, false positive or ignored."""
    scores = image.scores[rows]
    is_of_class = image.truth_class_ids == class_id
    is_right = np.zeros(len(rows), bool)
    is_left_out = np.zeros(len(rows), bool)
    is_difficult, is_group_of = _flags(image, rules)
    boxes = image.boxes_yxyx_px[rows]

    # A detection can only match its best object, even if that one is taken and the second best is free.
    objects = np.flatnonzero(is_of_class & ~is_group_of)
    is_taken = np.zeros(len(objects), bool)
    for row, best in _best_overlaps(_pairwise_iou(boxes, image.truth_boxes_yxyx_px[objects]), min_iou):
        if is_difficult[objects[best]]:
            is_left_out[row] = True
        elif not is_taken[best]:
            is_right[row] = is_taken[best] = True

    groups = np.flatnonzero(is_of_class & is_group_of)
    if len(groups) == 0:
        return _Labelled(scores[~is_left_out], is_right[~is_left_out].astype(np.float32))
    group_scores = np.zeros(len(groups), scores.dtype)
    shares = _intersections(boxes, image.truth_boxes_yxyx_px[groups]) / _areas(boxes)[:, None]
    for row, best in _best_overlaps(shares, min_iou):
        if not is_right[row] and not is_left_out[row]:
            is_left_out[row] = True
            group_scores[best] = max(group_scores[best], scores[row])
    weight = rules.group_of_weight or 0.0
    group_scores = group_scores[group_scores > 0] if weight > 0 else group_scores[:0]
    return _Labelled(
        np.concatenate([scores[~is_left_out], group_scores]),
        np.concatenate([is_right[~is_left_out], np.full(len(group_scores), weight)]),
    )


def _best_overlaps(overlaps_NG: Array, min_overlap: float) -> Iterator[tuple[int, int]]:
    """Yield each row with at least `min_overlap` and its best column (of ties the first)."""
    if overlaps_NG.shape[1] == 0:
        return
    best = overlaps_NG.argmax(axis=1)
    rows = np.flatnonzero(overlaps_NG[np.arange(len(best)), best] >= min_overlap)
    yield from zip(rows.tolist(), best[rows].tolist(), strict=True)


def _areas(boxes_yxyx: Array) -> Array:
    ymin, xmin, ymax, xmax = boxes_yxyx.T
    areas: Array = (ymax - ymin) * (xmax - xmin)
    return areas


def _intersections(boxes1_yxyx: Array, boxes2_yxyx: Array) -> Array:
    """Return intersections, float64 [N, M]; sides are computed in the boxes' dtype, as in the reference."""
    first, second = boxes1_yxyx[:, None], boxes2_yxyx[None]
    sides = np.minimum(first[..., 2:], second[..., 2:]) - np.maximum(first[..., :2], second[..., :2])
    sides = np.maximum(sides, 0).astype(float)
    products: Array = sides[..., 0] * sides[..., 1]
    return products


def _pairwise_iou(boxes1_yxyx: Array, boxes2_yxyx: Array) -> Array:
    intersections = _intersections(boxes1_yxyx, boxes2_yxyx)
    ious: Array = intersections / (_areas(boxes1_yxyx)[:, None] + _areas(boxes2_yxyx)[None] - intersections)
    return ious


def _join(parts: Sequence[_Labelled]) -> _Labelled:
    return _Labelled(
        np.concatenate([part.scores for part in parts] or [np.zeros(0, np.float32)]),
        np.concatenate([part.weights for part in parts] or [np.zeros(0, np.float32)]),
    )


def _average_precision(labelled: _Labelled, num_truth: float, rules: VocRules) -> float:
    weights = labelled.weights[_descending(labelled.scores.astype(np.longdouble))]
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
