"""Types of detection errors, and the AP that each type costs.

Implements TIDE (Bolya et al., "TIDE: A General Toolbox for Identifying Object Detection Errors", ECCV 2020), and equals
its library `tidecv` 1.0.1 in details that the paper leaves open. Every false positive and every missed object has one
type; the cost of a type is the gain in AP if only the errors of this type are fixed. Costs do not add up to 1 - AP.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

import numpy as np

from detloom.schemas.contracts.arrays import Array
from detloom.trainer_module.evaluation.coco_images import ImageDetections, ImageGroundTruth
from detloom.trainer_module.evaluation.image_table import ImageTable
from detloom.trainer_module.evaluation.matches import BLOCK_IMAGES, padded_groups, pairwise_iou, ranks_of

MIN_IOU, BACKGROUND_IOU = 0.5, 0.1  # tidecv's defaults
MAX_DETECTIONS = 100  # per image over all classes: tidecv's default
NUM_RECALL_INTERVALS = 100  # AP is the mean of 101 precisions, as in COCO


class ErrorType(str, Enum):
    """Error types; a false positive has the first type that applies, in this order."""

    LOCALIZATION = "localization"  # correct class, IoU from BACKGROUND_IOU to MIN_IOU, both inclusive
    CLASSIFICATION = "classification"  # IoU of MIN_IOU or more with an object of another class
    DUPLICATE = "duplicate"  # a detection with a higher score is already matched to the object
    BACKGROUND = "background"  # IoU of at most BACKGROUND_IOU with every object
    BOTH = "both"  # none of these: wrong class and poorly localized
    MISSED = "missed"  # object without a matched detection and without a localization or classification error


_TYPES = tuple(ErrorType)
_LOCALIZATION, _CLASSIFICATION, _DUPLICATE, _BACKGROUND, _BOTH, _MISSED = range(len(_TYPES))
RIGHT = -1  # instead of the number of a type


@dataclass(frozen=True, kw_only=True)
class WrongDetection:
    """One false positive; `detection_index` is its position among the image's detections."""

    image_index: int
    detection_index: int
    error_type: ErrorType
    score: float


@dataclass(frozen=True, eq=False, kw_only=True)
class DetectionOutcomes:
    """Detections by image and descending score, at most 100 of an image, in some 30 bytes each.

    Attributes:
        rows: positions among the image's detections.
        type_numbers: positions in `ErrorType`, or RIGHT for a true positive.
        is_on_crowd: false positives on a crowd of their class. As in tidecv, they have a type and count as errors, but
            do not affect AP.
        is_fixable: fixing the error turns it into a true positive of class `fixed_class_ids`; other errors are removed.
    """

    image_index: Array
    rows: Array
    class_ids: Array
    scores: Array
    type_numbers: Array
    is_on_crowd: Array
    is_fixable: Array
    fixed_class_ids: Array

    def highest_wrong(self, count: int) -> list[WrongDetection]:
        """Return the false positive with the highest score of each image, for the images with the highest ones.

        Detections on crowds are left out.
        """
        rows = np.flatnonzero((self.type_numbers != RIGHT) & ~self.is_on_crowd)
        _, first = np.unique(self.image_index[rows], return_index=True)
        rows = rows[first]
        return [
            WrongDetection(
                image_index=int(self.image_index[row]),
                detection_index=int(self.rows[row]),
                error_type=_TYPES[self.type_numbers[row]],
                score=float(self.scores[row]),
            )
            for row in rows[np.argsort(-self.scores[rows], kind="stable")[:count]]
        ]


@dataclass(frozen=True, kw_only=True)
class ErrorCosts:
    """Cost in AP and count of each error type; costs are differences of AP on a scale of 0 to 1.

    Attributes:
        AP50: AP at IoU 0.50, the mean over classes with ground truth or detections (a class without ground truth has
            AP 0, unlike in COCO). Without any, AP50 and all costs are 0.
        cost_by_type: cost of every type, 0 or more.
        count_by_type: number of errors of every type.
        false_positive_cost: gain if all false positives had scores below all true positives.
        false_negative_cost: gain if the objects that were not found did not exist. With tied scores it may be below
            0, because tidecv then ranks false positives first.
    """

    AP50: float
    cost_by_type: dict[ErrorType, float]
    count_by_type: dict[ErrorType, int]
    false_positive_cost: float
    false_negative_cost: float


def analyze_errors(
    truth: ImageTable[ImageGroundTruth], found: ImageTable[ImageDetections]
) -> tuple[ErrorCosts, DetectionOutcomes]:
    """Classify all errors and compute the cost of each type. The order of images matters only for tied scores.

    Args:
        truth, found: the same images in the same order.
    """
    starts = range(0, max(len(truth), 1), BLOCK_IMAGES)
    blocks = [_ErrorBlock(truth, found, start, min(start + BLOCK_IMAGES, len(truth))) for start in starts]
    outcomes = _join([block.outcomes() for block in blocks])
    is_missed = np.concatenate([block.is_missed for block in blocks])
    is_found = np.concatenate([block.is_found for block in blocks])
    num_errors = np.bincount(outcomes.type_numbers[outcomes.type_numbers != RIGHT], minlength=len(_TYPES))
    num_errors[_MISSED] = np.count_nonzero(is_missed)
    class_ids, is_object = truth.columns["class_ids"], ~truth.columns["is_crowd"].astype(bool)
    costs = _compute_costs(
        outcomes,
        num_truth=Counter(class_ids[is_object].tolist()),
        num_not_missed=Counter(class_ids[is_object & ~is_missed].tolist()),
        num_found=Counter(class_ids[is_object & is_found].tolist()),
        count_by_type=dict(zip(_TYPES, num_errors.tolist(), strict=True)),
    )
    return costs, outcomes


def _join(parts: Sequence[DetectionOutcomes]) -> DetectionOutcomes:
    names = [field.name for field in fields(DetectionOutcomes)]
    return DetectionOutcomes(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


class _ErrorBlock:
    """Consecutive images, whose boxes are matched together.

    Attributes:
        is_found: objects with a matched detection.
        is_missed: objects without a matched detection that no error explains either.
    """

    def __init__(
        self, truth: ImageTable[ImageGroundTruth], found: ImageTable[ImageDetections], start: int, stop: int
    ) -> None:
        rows = truth.rows(start, stop)
        self._truth_images = truth.image_index(start, stop)
        self._truth_ids = truth.columns["class_ids"][rows].astype(np.int64)
        self._truth_boxes = truth.xywh_px(start, stop, truth.image_hw_I2)
        self._is_crowd = truth.columns["is_crowd"][rows].astype(bool)

        rows, image_index = found.rows(start, stop), found.image_index(start, stop)
        scores = found.columns["scores"][rows]
        order = np.lexsort((-scores, image_index))
        order = order[ranks_of(image_index[order]) < MAX_DETECTIONS]
        self._first_image, self._images, self._scores = start, image_index[order], scores[order]
        self._rows = order - (found.offsets_I1[start:stop] - rows.start)[self._images]
        self._class_ids = found.columns["class_ids"][rows][order].astype(np.int64)
        self._boxes = found.xywh_px(start, stop, truth.image_hw_I2)[order]

        self._types = np.full(len(order), _BACKGROUND, np.int8)
        self._targets = np.full(len(order), -1)  # row of the object that an error refers to
        self._is_fixable = np.zeros(len(order), bool)
        self.is_found, self._is_explained = np.zeros((2, len(self._truth_ids)), bool)
        objects = np.flatnonzero(~self._is_crowd)
        for groups in padded_groups(self._images, self._truth_images[objects], np.arange(len(order)), objects):
            self._match(*groups)
        self.is_missed = ~self._is_crowd & ~self.is_found & ~self._is_explained

    def _match(self, rows_BN: Array, objects_BG: Array) -> None:
        """Match the detections of images, and find the types of the others."""
        is_object_B1G = (objects_BG >= 0)[:, np.newaxis]
        iou_BNG = pairwise_iou(self._boxes[rows_BN], self._truth_boxes[objects_BG])
        iou_BNG *= is_object_B1G & (rows_BN >= 0)[:, :, np.newaxis]
        is_same_BNG = self._class_ids[rows_BN][:, :, np.newaxis] == self._truth_ids[objects_BG][:, np.newaxis]
        column_BN, is_taken_BG = _match_by_rank(iou_BNG * is_same_BNG)
        types_BN, targets_BN = _find_types(iou_BNG, is_same_BNG, is_taken_BG)
        types_BN[column_BN >= 0] = RIGHT
        is_row_BN = rows_BN >= 0
        rows = rows_BN[is_row_BN]
        targets = np.where(targets_BN >= 0, np.take_along_axis(objects_BG, targets_BN, axis=1), -1)[is_row_BN]
        self._types[rows], self._targets[rows] = types_BN[is_row_BN], targets
        self.is_found[objects_BG[is_taken_BG]] = True

        # Of several errors for one object, only the one with the highest score can become a true positive.
        is_candidate = np.isin(types_BN[is_row_BN], (_LOCALIZATION, _CLASSIFICATION)) & ~self.is_found[targets]
        explained, first = np.unique(targets[is_candidate], return_index=True)
        self._is_fixable[rows[is_candidate][first]] = True
        self._is_explained[explained] = True

    def outcomes(self) -> DetectionOutcomes:
        class_of_target = np.append(self._truth_ids, 0)[self._targets]  # 0 for a detection without an object
        return DetectionOutcomes(
            image_index=(self._first_image + self._images).astype(np.int32),
            rows=self._rows.astype(np.int32),
            class_ids=self._class_ids.astype(np.int32),
            scores=self._scores,
            type_numbers=self._types,
            is_on_crowd=(self._types != RIGHT) & self._is_on_crowd(),
            is_fixable=self._is_fixable,
            fixed_class_ids=np.where(self._is_fixable, class_of_target, self._class_ids).astype(np.int32),
        )

    def _is_on_crowd(self) -> Array:
        """Return a mask of detections of which more than MIN_IOU of the area is inside one crowd of their class."""
        result = np.zeros(len(self._rows), bool)
        crowds = np.flatnonzero(self._is_crowd)
        for rows_BN, crowds_BG in padded_groups(
            self._images, self._truth_images[crowds], np.arange(len(result)), crowds
        ):
            share_BNG = pairwise_iou(self._boxes[rows_BN], self._truth_boxes[crowds_BG], crowds_BG >= 0)
            is_same_BNG = self._class_ids[rows_BN][:, :, np.newaxis] == self._truth_ids[crowds_BG][:, np.newaxis]
            is_inside_BNG = (share_BNG > MIN_IOU) & is_same_BNG & (crowds_BG >= 0)[:, np.newaxis]
            is_row_BN = rows_BN >= 0
            result[rows_BN[is_row_BN]] = is_inside_BNG.any(axis=2)[is_row_BN]
        return result


def _match_by_rank(same_class_iou_BNG: Array) -> tuple[Array, Array]:
    """Let each detection of an image in turn take the free object with the highest IoU (of ties the first).

    Return the column [B, N] of each detection, or -1, and the objects [B, G] that are taken.
    """
    num_images, num_found, num_objects = same_class_iou_BNG.shape
    column_BN = np.full((num_images, num_found), -1)
    is_free_BG = np.ones((num_images, num_objects), bool)
    for rank in np.flatnonzero((same_class_iou_BNG >= MIN_IOU).any(axis=(0, 2))):
        free_iou_BG = same_class_iou_BNG[:, rank] * is_free_BG
        images = np.flatnonzero(free_iou_BG.max(axis=1) >= MIN_IOU)
        best = free_iou_BG[images].argmax(axis=1)
        column_BN[images, rank] = best
        is_free_BG[images, best] = False
    return column_BN, ~is_free_BG


def _find_types(iou_BNG: Array, is_same_class_BNG: Array, is_taken_BG: Array) -> tuple[Array, Array]:
    """Return the type [B, N] of each detection if it is a false positive, and the column [B, N] it refers to, or -1."""
    same, other = iou_BNG * is_same_class_BNG, iou_BNG * ~is_same_class_BNG
    taken, best_same = same * is_taken_BG[:, np.newaxis], same.max(axis=2)
    conditions = [
        (best_same >= BACKGROUND_IOU) & (best_same <= MIN_IOU),
        other.max(axis=2) >= MIN_IOU,
        taken.max(axis=2) >= MIN_IOU,
        iou_BNG.max(axis=2) <= BACKGROUND_IOU,
    ]
    numbers: list[Any] = [_LOCALIZATION, _CLASSIFICATION, _DUPLICATE, _BACKGROUND]
    columns: list[Any] = [same.argmax(axis=2), other.argmax(axis=2), taken.argmax(axis=2), -1]
    return np.select(conditions, numbers, _BOTH), np.select(conditions, columns, iou_BNG.argmax(axis=2))


def _compute_costs(
    rows: DetectionOutcomes,
    *,
    num_truth: Counter[int],
    num_not_missed: Counter[int],
    num_found: Counter[int],
    count_by_type: dict[ErrorType, int],
) -> ErrorCosts:
    """Compute the costs from objects by class: all, without the missed ones, only those with a detection."""
    if not num_truth and rows.is_on_crowd.all():
        zeros = dict.fromkeys(_TYPES, 0.0)
        return ErrorCosts(
            AP50=0.0, cost_by_type=zeros, count_by_type=count_by_type, false_positive_cost=0.0, false_negative_cost=0.0
        )
    # As in tidecv, tied scores rank by image in the measured AP, but false before true positives in the fixed AP.
    is_right, counts = rows.type_numbers == RIGHT, ~rows.is_on_crowd
    AP50 = _mean_AP(rows.class_ids, rows.scores, is_right, counts, num_truth)
    gains = {error_type: _fixed_AP(rows, error_type, num_truth) - AP50 for error_type in _TYPES}
    gains[ErrorType.MISSED] = _mean_AP(rows.class_ids, rows.scores, is_right, counts, num_not_missed, is_right) - AP50
    return ErrorCosts(
        AP50=AP50,
        cost_by_type={error_type: max(gain, 0.0) for error_type, gain in gains.items()},
        count_by_type=count_by_type,
        false_positive_cost=_mean_AP(rows.class_ids, is_right, is_right, counts, num_truth) - AP50,
        false_negative_cost=_mean_AP(rows.class_ids, rows.scores, is_right, counts, num_found, is_right) - AP50,
    )


def _fixed_AP(rows: DetectionOutcomes, error_type: ErrorType, num_truth: Counter[int]) -> float:
    """Compute AP with the errors of one type fixed, or removed if they cannot be fixed."""
    is_right, is_of_type = rows.type_numbers == RIGHT, rows.type_numbers == _TYPES.index(error_type)
    is_fixed = is_of_type & rows.is_fixable
    counts = np.where(is_of_type, is_fixed, ~rows.is_on_crowd)
    class_ids = np.where(is_fixed, rows.fixed_class_ids, rows.class_ids)
    return _mean_AP(class_ids, rows.scores, is_fixed | is_right, counts, num_truth, is_right)


def _mean_AP(
    class_ids: Array,
    scores: Array,
    is_right: Array,
    counts: Array,
    num_truth: Counter[int],
    is_last: Array | None = None,
) -> float:
    """Compute the mean AP over classes with objects or counted rows.

    Tied scores rank in the order of the rows, those of `is_last` after the others. Without any class it is 1: all
    errors are fixed and nothing is left (tidecv divides by zero).
    """
    class_ids, is_right = class_ids[counts], is_right[counts]
    descending = -scores[counts].astype(np.float32 if scores.dtype == bool else scores.dtype)
    keys = (descending, class_ids) if is_last is None else (is_last[counts], descending, class_ids)
    order = np.lexsort(keys)
    del keys, descending
    found_ids, starts = np.unique(class_ids[order], return_index=True)
    by_class = dict(zip(found_ids.tolist(), np.split(is_right[order], starts[1:]), strict=False))
    APs = [_AP(by_class[class_id], num_truth[class_id]) for class_id in by_class]
    num_undetected = sum(count > 0 and class_id not in by_class for class_id, count in num_truth.items())
    num_classes = len(APs) + num_undetected  # an undetected class has AP 0
    return sum(APs) / num_classes if num_classes else 1.0


def _AP(is_right: Array, num_truth: int) -> float:
    """Compute AP of one class from its detections by descending score."""
    if num_truth == 0:
        return 0.0
    num_right = np.cumsum(is_right)
    precisions = num_right / np.arange(1, len(is_right) + 1)
    precisions = np.append(np.maximum.accumulate(precisions[::-1])[::-1], 0.0)  # 0 for a recall that is not reached
    points = np.arange(NUM_RECALL_INTERVALS + 1) / NUM_RECALL_INTERVALS
    return float(np.mean(precisions[np.searchsorted(num_right / num_truth, points)]))
