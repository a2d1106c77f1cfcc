"""Average precision and operating points from matches.

AP equals `COCOeval.accumulate` of pycocotools, also for weighted images: an image of weight 2 counts as if the split
contained it twice, as bootstrap resampling requires.
"""

from dataclasses import dataclass

import numpy as np

from detloom.schemas.contracts.arrays import Array, BoolArray, Float64Array, Int64Array
from detloom.trainer_module.evaluation.box_curves import RECALLS
from detloom.trainer_module.evaluation.matches import ALL_SIZES, IOU_THRESHOLDS, Matches


@dataclass(frozen=True, eq=False, kw_only=True)
class Curve:
    """Precision over recall of one class, or of all classes together, at one IoU threshold.

    Attributes:
        scores: float64 [N], descending: the score threshold at each point.
        num_true, num_false: float64 [N], true and false positives at that threshold.
        num_truth: number of ground-truth objects.
    """

    scores: Float64Array
    num_true: Float64Array
    num_false: Float64Array
    num_truth: int

    @property
    def precision(self) -> Float64Array:
        return self.num_true / (self.num_true + self.num_false)

    @property
    def recall(self) -> Float64Array:
        return self.num_true / self.num_truth


def measure_curve(matches: Matches, class_index: int, threshold_index: int) -> Curve:
    """Measure the curve of a class with one point per distinct score. Without objects recall is NaN."""
    rows, truth = matches.found_of_class(class_index), matches.truth_of_class(class_index)
    return _measure_curve(matches, threshold_index, rows, matches.is_crowd[truth])


def measure_pooled_curve(matches: Matches, threshold_index: int) -> Curve:
    """Measure the curve of all classes together, where one score threshold applies to all of them."""
    rows = np.argsort(-matches.scores, kind="stable")
    return _measure_curve(matches, threshold_index, rows, matches.is_crowd)


def _measure_curve(matches: Matches, threshold_index: int, rows: slice | Int64Array, is_crowd: BoolArray) -> Curve:
    """Measure the curve of these detections, in descending order of score, and these objects."""
    counts = ~matches.is_ignored(threshold_index, rows)
    is_true, scores = matches.is_true(threshold_index, rows)[counts], matches.scores[rows][counts]
    is_last = np.append(scores[1:] != scores[:-1], np.ones(min(len(scores), 1), bool))
    return Curve(
        scores=scores[is_last],
        num_true=np.cumsum(is_true)[is_last].astype(np.float64),
        num_false=np.cumsum(~is_true)[is_last].astype(np.float64),
        num_truth=int(np.count_nonzero(~is_crowd)),
    )


class ClassSampler:
    """Computes curves of one class for many weightings of the images; caches what does not depend on the weights."""

    def __init__(self, matches: Matches, class_index: int) -> None:
        rows, truth = matches.found_of_class(class_index), matches.truth_of_class(class_index)
        true_N, ignored_N = matches.true_AN[ALL_SIZES, rows], matches.ignored_AN[ALL_SIZES, rows]
        # Curves change only at true positives. After the last one, precision only falls and recall does not rise.
        self._rows_U = np.flatnonzero(true_N)
        stop = int(self._rows_U[-1]) + 1 if len(self._rows_U) else 0
        self._true_U = true_N[self._rows_U]
        self._image_index = matches.found.image_index[rows][:stop]
        self._rows_I = np.flatnonzero(ignored_N[:stop])
        self._ignored_I = ignored_N[self._rows_I]
        counted = ~matches.is_crowd[truth]
        truth_per_image = np.bincount(matches.truth.image_index[truth][counted], minlength=matches.num_images)
        self._images_with_truth = np.flatnonzero(truth_per_image)
        self._truth_per_image = truth_per_image[self._images_with_truth]

    def num_truth(self, weights_BI: Array) -> Array:
        """Return the number of objects [B] of the class in each weighting."""
        product: Array = weights_BI[:, self._images_with_truth].astype(np.float64) @ self._truth_per_image
        return product

    @property
    def num_rows(self) -> int:
        """Number of values that each weighting uses."""
        return max(len(self._image_index), len(self._images_with_truth))

    def average_precision(self, weights_BI: Array) -> Float64Array:
        """Return AP [B, T] at each IoU threshold; NaN if a weighting has no object of the class."""
        num_truth_B = self.num_truth(weights_BI)
        result_BT = np.zeros((len(weights_BI), len(IOU_THRESHOLDS)))
        has_truth_B = num_truth_B > 0
        if len(self._rows_U):
            starts_U = np.concatenate([[0], self._rows_U[:-1] + 1])  # of the detections up to each true positive
            weights_BN = weights_BI[:, self._image_index]
            found_BU = np.cumsum(np.add.reduceat(weights_BN, starts_U, axis=1, dtype=np.float64), axis=1)
            true_BU = weights_BN[:, self._rows_U].astype(np.float64)
            ignored_BI = weights_BN[:, self._rows_I].astype(np.float64)
            for t in range(len(IOU_THRESHOLDS)):
                recall_BP, envelope_BP = self._curves(
                    t, found_BU, true_BU, ignored_BI, np.where(has_truth_B, num_truth_B, 1)
                )
                # Mean over 101 recalls: each point counts for the recalls that it is the first to reach.
                share_BP = np.diff(_count_reached(recall_BP), axis=1, prepend=0) / len(RECALLS)
                result_BT[:, t] = (envelope_BP * share_BP).sum(axis=1)
        result_BT[~has_truth_B] = np.nan
        return result_BT

    def _curves(
        self,
        threshold_index: int,
        found_BU: Float64Array,
        true_BU: Float64Array,
        ignored_BI: Float64Array,
        num_truth_B: Array,
    ) -> tuple[Float64Array, Float64Array]:
        """Return recall and interpolated precision, each [B, P], at each true positive."""
        bit = 1 << threshold_index
        is_true_U, is_ignored_I = (self._true_U & bit) != 0, (self._ignored_I & bit) != 0
        true_BP, counted_BP = np.cumsum(true_BU[:, is_true_U], axis=1), found_BU[:, is_true_U]
        if is_ignored_I.any():
            num_ignored_BJ = np.cumsum(np.insert(ignored_BI[:, is_ignored_I], 0, 0, axis=1), axis=1)
            counted_BP = (
                counted_BP - num_ignored_BJ[:, np.searchsorted(self._rows_I[is_ignored_I], self._rows_U[is_true_U])]
            )
        # 2**-52 is pycocotools' guard against division by 0, which occurs here if the first images have weight 0.
        precision_BP = true_BP / (counted_BP + np.spacing(1.0))
        envelope_BP = np.maximum.accumulate(precision_BP[:, ::-1], axis=1)[:, ::-1]
        return true_BP / num_truth_B[:, None], envelope_BP


def _count_reached(recall_BP: Float64Array) -> Int64Array:
    """Count the RECALLS that are at most each recall: estimate by arithmetic, then correct rounding errors."""
    last = len(RECALLS) - 1
    index_BP = (recall_BP * last).astype(np.int64)
    index_BP += RECALLS[np.minimum(index_BP + 1, last)] <= recall_BP
    index_BP = np.minimum(index_BP, last)
    index_BP -= RECALLS[index_BP] > recall_BP
    return index_BP + 1


@dataclass(frozen=True, kw_only=True)
class OperatingPoint:
    """Metrics of a class at IoU 0.50 if detections with at least `min_score` are used."""

    min_score: float
    precision: float
    recall: float
    F1: float
    num_true: int
    num_false: int
    num_missed: int


def best_f1_point(curve: Curve) -> OperatingPoint | None:
    """Return the point with the highest F1 (of ties the highest score); None without true positives.

    F1 = 2 true / (true + false + objects): van Rijsbergen, "Information Retrieval", 1979, chapter 7.
    """
    if not curve.num_truth or not len(curve.scores) or not curve.num_true[-1]:
        return None
    return _point(curve, int(np.argmax(_f1(curve))))


def point_of_precision(curve: Curve, min_precision: float) -> OperatingPoint | None:
    """Return the point with the highest recall and at least `min_precision`; None if no score reaches it."""
    if not curve.num_truth or not len(curve.scores):
        return None
    is_enough = (curve.precision >= min_precision) & (curve.num_true > 0)
    rows = np.flatnonzero(is_enough)
    return _point(curve, int(rows[np.argmax(curve.num_true[rows])])) if len(rows) else None


def _f1(curve: Curve) -> np.ndarray:
    return 2 * curve.num_true / (curve.num_true + curve.num_false + curve.num_truth)


def _point(curve: Curve, row: int) -> OperatingPoint:
    return OperatingPoint(
        min_score=float(curve.scores[row]),
        precision=float(curve.precision[row]),
        recall=float(curve.recall[row]),
        F1=float(_f1(curve)[row]),
        num_true=int(curve.num_true[row]),
        num_false=int(curve.num_false[row]),
        num_missed=curve.num_truth - int(curve.num_true[row]),
    )
