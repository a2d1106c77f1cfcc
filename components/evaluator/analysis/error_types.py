"""Types of detection errors, and the AP that each type costs.

Implements TIDE (Bolya et al., "TIDE: A General Toolbox for Identifying Object Detection Errors", ECCV 2020), and equals
its library `tidecv` 1.0.1 in details that the paper leaves open. Every false positive and every missed object has one
type; the cost of a type is the gain in AP if only the errors of this type are fixed. Costs do not add up to 1 - AP.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from detloom.trainer_module.evaluation.matches import check_columns, pairwise_iou

Array = npt.NDArray[Any]

MAX_DETECTIONS = 100  # per image over all classes: tidecv's default
NUM_RECALL_INTERVALS = 100  # AP is the mean of 101 precisions, as in COCO


class ErrorType(str, Enum):
    """Error types; a false positive has the first type that applies, in this order."""

    LOCALIZATION = "localization"  # correct class, IoU from `background_iou` to `min_iou`, both inclusive
    CLASSIFICATION = "classification"  # IoU of `min_iou` or more with an object of another class
    DUPLICATE = "duplicate"  # a detection with a higher score is already matched to the object
    BACKGROUND = "background"  # IoU of at most `background_iou` with every object
    BOTH = "both"  # none of these: wrong class and poorly localized
    MISSED = "missed"  # object without a matched detection and without a localization or classification error


@dataclass(frozen=True, eq=False, kw_only=True)
class ErrorImage:
    """Ground truth and detections of one image.

    Attributes:
        truth_boxes_xywh_px: float64 [G, 4].
        truth_class_ids: int [G].
        is_crowd: bool [G]; detections on a crowd of their class are neither true nor false positives.
        boxes_xywh_px: float [N, 4]; only the 100 with the highest scores are used.
        scores: float [N], 0 to 1.
        class_ids: int [N].
    """

    truth_boxes_xywh_px: Array
    truth_class_ids: Array
    is_crowd: Array
    boxes_xywh_px: Array
    scores: Array
    class_ids: Array

    def __post_init__(self) -> None:
        check_columns(self.truth_boxes_xywh_px, truth_class_ids=self.truth_class_ids, is_crowd=self.is_crowd)
        check_columns(self.boxes_xywh_px, scores=self.scores, class_ids=self.class_ids)


@dataclass(frozen=True, kw_only=True)
class DetectionError:
    """One false positive or one missed object.

    Attributes:
        image_index: position in the sequence of images.
        detection_index: position in that image's `boxes_xywh_px`; None for a missed object.
        truth_index: position in that image's `truth_boxes_xywh_px` of the object that was missed, poorly localized,
            misclassified or detected twice; for BOTH the object with the highest IoU; None for BACKGROUND.
        score: score of the detection; None for a missed object.
        is_on_crowd: the detection is on a crowd of its class. As in tidecv, it has a type and counts as an error, but
            does not affect AP.
    """

    image_index: int
    error_type: ErrorType
    detection_index: int | None
    truth_index: int | None
    score: float | None
    is_on_crowd: bool


class ErrorTable(Sequence[DetectionError]):
    """All errors by image: false positives by descending score, then missed objects. A few bytes for each detection."""

    def __init__(self, rows: "_Outcomes", missed: tuple[Array, Array]) -> None:
        """Args: missed: image index and row in the image of each missed object, by image."""
        wrong = np.flatnonzero(rows.type_numbers != _RIGHT)
        self._columns = (rows.image_index[wrong], rows.rows[wrong], rows.type_numbers[wrong], rows.truth_rows[wrong])
        self._scores, self._is_on_crowd = rows.scores[wrong], rows.is_on_crowd[wrong]
        self._missed = missed

    def __len__(self) -> int:
        return len(self._scores) + len(self._missed[0])

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]

    def __iter__(self) -> Iterator[DetectionError]:
        images = np.concatenate([self._columns[0], self._missed[0]])
        for position in np.argsort(images, kind="stable").tolist():
            if position < len(self._scores):
                yield self._wrong(position)
            else:
                yield _missed_error(*(int(column[position - len(self._scores)]) for column in self._missed))

    def highest_wrong(self, count: int) -> list[DetectionError]:
        """Return the false positive with the highest score of each image, for the images with the highest ones.

        Detections on crowds are left out.
        """
        rows = np.flatnonzero(~self._is_on_crowd)
        _, first = np.unique(self._columns[0][rows], return_index=True)
        rows = rows[first]
        return [self._wrong(row) for row in rows[np.argsort(-self._scores[rows], kind="stable")[:count]].tolist()]

    def _wrong(self, row: int) -> DetectionError:
        image_index, detection_index, type_number, truth_index = (int(column[row]) for column in self._columns)
        return DetectionError(
            image_index=image_index,
            error_type=_TYPES[type_number],
            detection_index=detection_index,
            truth_index=truth_index if truth_index >= 0 else None,
            score=float(self._scores[row]),
            is_on_crowd=bool(self._is_on_crowd[row]),
        )


@dataclass(frozen=True, kw_only=True)
class ErrorAnalysis:
    """Costs and counts of all error types; costs are differences of AP on a scale of 0 to 1.

    Attributes:
        AP50: AP at `min_iou`, the mean over classes with ground truth or detections (a class without ground truth has
            AP 0, unlike in COCO). Without any, AP50 and all costs are 0.
        cost_by_type: cost of every type, 0 or more.
        count_by_type: number of errors of every type.
        false_positive_cost: gain if all false positives had scores below all true positives.
        false_negative_cost: gain if the objects that were not found did not exist. With tied scores it may be below
            0, because tidecv then ranks false positives first.
        errors: by image; false positives by descending score, then missed objects.
    """

    AP50: float
    cost_by_type: dict[ErrorType, float]
    count_by_type: dict[ErrorType, int]
    false_positive_cost: float
    false_negative_cost: float
    errors: ErrorTable


@dataclass(frozen=True, eq=False)
class _Outcomes:
    """Detections by image and descending score, one row each; a missed object has no row.

    `type_numbers` are positions in `_TYPES`, or -1 for a true positive. Fixing an error turns it into a true positive
    of class `fixed_class_ids` if `is_fixable`, and removes it otherwise. `rows` and `truth_rows` (or -1) are positions
    in the image's arrays.
    """

    image_index: Array
    rows: Array
    truth_rows: Array
    class_ids: Array
    scores: Array
    type_numbers: Array
    is_on_crowd: Array
    is_fixable: Array
    fixed_class_ids: Array


_JOINED_IMAGES = 4096  # images whose outcomes are joined at a time
_DTYPES = (np.int32, np.int32, np.int32, np.int32, None, np.int8, bool, bool, np.int32)  # of the columns of _Outcomes


_TYPES = tuple(ErrorType)
_LOCALIZATION, _CLASSIFICATION, _DUPLICATE, _BACKGROUND, _BOTH, _MISSED = range(len(_TYPES))
_RIGHT = -1


def analyze_errors(images: Iterable[ErrorImage], *, min_iou: float = 0.5, background_iou: float = 0.1) -> ErrorAnalysis:
    """Classify all errors and compute the cost of each type. The order of images matters only for tied scores.

    Raises:
        ValueError: unless 0 <= `background_iou` <= `min_iou` <= 1.
    """
    if not 0 <= background_iou <= min_iou <= 1:
        raise ValueError(
            f"got background_iou {background_iou} and min_iou {min_iou}, allowed: 0 <= first <= second <= 1."
        )
    num_truth: Counter[int] = Counter()
    num_missed: Counter[int] = Counter()
    num_unfound: Counter[int] = Counter()
    parts: list[_Outcomes] = []
    joined: list[_Outcomes] = []
    missed: list[tuple[int, int]] = []
    for image_index, image in enumerate(images):
        result = _analyze_image(image, image_index, min_iou, background_iou)
        parts.append(result.outcomes)
        if len(parts) == _JOINED_IMAGES:
            joined.append(_join(parts))
            parts = []
        missed += [(image_index, row) for row in result.missed.tolist()]
        num_truth.update(image.truth_class_ids[~image.is_crowd.astype(bool)].tolist())
        num_unfound.update(image.truth_class_ids[result.unfound].tolist())
        num_missed.update(image.truth_class_ids[result.missed].tolist())
    joined.append(_join(parts))
    rows = _join(joined)
    joined.clear()
    missed_2M = np.array(missed, np.int32).reshape(-1, 2).T
    errors = ErrorTable(rows, (missed_2M[0], missed_2M[1]))
    num_errors = np.bincount(rows.type_numbers[rows.type_numbers != _RIGHT], minlength=len(_TYPES))
    num_errors[_MISSED] = len(missed)
    costs = _compute_costs(rows, num_truth, num_truth - num_missed, num_truth - num_unfound)
    return ErrorAnalysis(
        AP50=costs.AP50,
        cost_by_type=costs.cost_by_type,
        count_by_type=dict(zip(_TYPES, num_errors.tolist(), strict=True)),
        false_positive_cost=costs.false_positive_cost,
        false_negative_cost=costs.false_negative_cost,
        errors=errors,
    )


@dataclass(frozen=True, eq=False)
class _ImageResult:
    """Results of one image.

    `unfound` are positions of objects without a matched detection, `missed` of those that no error explains either.
    """

    outcomes: _Outcomes
    unfound: Array
    missed: Array


def _analyze_image(image: ErrorImage, image_index: int, min_iou: float, background_iou: float) -> _ImageResult:
    found = np.argsort(-image.scores, kind="stable")[:MAX_DETECTIONS]
    is_crowd = image.is_crowd.astype(bool)
    objects = np.flatnonzero(~is_crowd)
    class_ids, scores = image.class_ids[found], image.scores[found]
    iou = pairwise_iou(image.boxes_xywh_px[found], image.truth_boxes_xywh_px[objects])
    is_same_class = class_ids[:, None] == image.truth_class_ids[objects]
    matches = _match(iou * is_same_class, min_iou)
    is_wrong = matches < 0
    is_taken = np.isin(np.arange(len(objects)), matches)
    types, targets = _find_types(iou, is_same_class, is_taken, min_iou, background_iou)
    types[~is_wrong] = _RIGHT

    # Of several errors for one object, only the one with the highest score can become a true positive.
    is_fixable = np.zeros(len(found), bool)
    candidates = np.flatnonzero((types == _LOCALIZATION) | (types == _CLASSIFICATION))
    candidates = candidates[~is_taken[targets[candidates]]]
    meant, first = np.unique(targets[candidates], return_index=True)
    is_fixable[candidates[first]] = True
    fixed_class_ids = class_ids.copy()
    fixed_class_ids[is_fixable] = image.truth_class_ids[objects[targets[is_fixable]]]

    missed = objects[~is_taken & ~np.isin(np.arange(len(objects)), meant)]
    is_on_crowd = is_wrong & _lies_on_crowd(image, found, np.flatnonzero(is_crowd), min_iou)
    truth_rows = np.full(len(found), -1)
    truth_rows[targets >= 0] = objects[targets[targets >= 0]]
    image_indices = np.full(len(found), image_index)
    outcomes = _Outcomes(
        image_indices, found, truth_rows, class_ids, scores, types, is_on_crowd, is_fixable, fixed_class_ids
    )
    return _ImageResult(outcomes, objects[~is_taken], missed)


def _missed_error(image_index: int, truth_index: int) -> DetectionError:
    return DetectionError(
        image_index=image_index,
        error_type=ErrorType.MISSED,
        detection_index=None,
        truth_index=truth_index,
        score=None,
        is_on_crowd=False,
    )


@dataclass(frozen=True, kw_only=True)
class _Costs:
    AP50: float
    cost_by_type: dict[ErrorType, float]
    false_positive_cost: float
    false_negative_cost: float


def _compute_costs(
    rows: _Outcomes, num_truth: Counter[int], num_not_missed: Counter[int], num_found: Counter[int]
) -> _Costs:
    """Compute the costs from objects by class: all, without the missed ones, only those with a detection."""
    if not num_truth and rows.is_on_crowd.all():
        return _Costs(
            AP50=0.0, cost_by_type=dict.fromkeys(_TYPES, 0.0), false_positive_cost=0.0, false_negative_cost=0.0
        )
    # As in tidecv, tied scores rank by image in the measured AP, but false before true positives in the fixed AP.
    is_right, counts = rows.type_numbers == _RIGHT, ~rows.is_on_crowd
    AP50 = _mean_AP(rows.class_ids, rows.scores, is_right, counts, num_truth)
    gains = {error_type: _fixed_AP(rows, error_type, num_truth) - AP50 for error_type in _TYPES}
    gains[ErrorType.MISSED] = _mean_AP(rows.class_ids, rows.scores, is_right, counts, num_not_missed, is_right) - AP50
    return _Costs(
        AP50=AP50,
        cost_by_type={error_type: max(gain, 0.0) for error_type, gain in gains.items()},
        false_positive_cost=_mean_AP(rows.class_ids, is_right, is_right, counts, num_truth) - AP50,
        false_negative_cost=_mean_AP(rows.class_ids, rows.scores, is_right, counts, num_found, is_right) - AP50,
    )


def _match(same_class_iou_NG: Array, min_iou: float) -> Array:
    """Return the column of each row, or -1: each row in turn takes the free column with the highest IoU."""
    matches = np.full(len(same_class_iou_NG), -1)
    free_iou = same_class_iou_NG.copy()
    for row in np.flatnonzero((same_class_iou_NG >= min_iou).any(axis=1)):
        best = int(free_iou[row].argmax())
        if free_iou[row, best] >= min_iou:
            matches[row] = best
            free_iou[:, best] = 0
    return matches


def _find_types(
    iou_NG: Array, is_same_class_NG: Array, is_taken_G: Array, min_iou: float, background_iou: float
) -> tuple[Array, Array]:
    """Return the error type [N] of each row if it is a false positive, and the column [N] it refers to (or -1)."""
    none = np.full(len(iou_NG), -1)
    if iou_NG.shape[1] == 0:
        return np.full(len(iou_NG), _BACKGROUND), none
    same, other = iou_NG * is_same_class_NG, iou_NG * ~is_same_class_NG
    taken, best_same = same * is_taken_G, same.max(axis=1)
    conditions = [
        (background_iou <= best_same) & (best_same <= min_iou),
        other.max(axis=1) >= min_iou,
        taken.max(axis=1) >= min_iou,
        iou_NG.max(axis=1) <= background_iou,
    ]
    numbers: list[Any] = [_LOCALIZATION, _CLASSIFICATION, _DUPLICATE, _BACKGROUND]
    columns = [same.argmax(axis=1), other.argmax(axis=1), taken.argmax(axis=1), none]
    return np.select(conditions, numbers, _BOTH), np.select(conditions, columns, iou_NG.argmax(axis=1))


def _lies_on_crowd(image: ErrorImage, found: Array, crowds: Array, min_iou: float) -> Array:
    """Return a mask of detections of which more than `min_iou` of the area is inside one crowd of their class."""
    boxes = image.truth_boxes_xywh_px[crowds]
    shares = pairwise_iou(image.boxes_xywh_px[found], boxes, np.ones(len(crowds), bool))
    is_same_class = image.class_ids[found][:, None] == image.truth_class_ids[crowds]
    on_crowd: Array = ((shares > min_iou) & is_same_class).any(axis=1)
    return on_crowd


def _join(parts: Sequence[_Outcomes]) -> _Outcomes:
    columns = []
    for field, dtype in zip(fields(_Outcomes), _DTYPES, strict=True):
        column = np.concatenate([getattr(part, field.name) for part in parts] or [np.zeros(0)])
        columns.append(column if dtype is None else column.astype(dtype, copy=False))
    return _Outcomes(*columns)


def _fixed_AP(rows: _Outcomes, error_type: ErrorType, num_truth: Counter[int]) -> float:
    """Compute AP with the errors of one type fixed, or removed if they cannot be fixed."""
    is_right, is_of_type = rows.type_numbers == _RIGHT, rows.type_numbers == _TYPES.index(error_type)
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
