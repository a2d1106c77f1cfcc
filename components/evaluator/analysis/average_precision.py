"""Average precision from matches, as `COCOeval.accumulate` in pycocotools computes it, for images of any weight.

An image of weight 2 counts as if it stood in the split twice: what resampling needs.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from detloom.components.evaluator.analysis.matches import Matches

RECALLS = np.linspace(0.0, 1.0, 101)  # R: where the curve is read, as pycocotools makes them


@dataclass(frozen=True, eq=False, kw_only=True)
class Curve:
    """Precision over recall of one class at one IoU threshold.

    Attributes:
        scores: float64 [N], descending: the least score that is let through at each point.
        num_true, num_false: float64 [N], right and wrong detections let through.
        num_truth: objects there are.
    """

    scores: npt.NDArray[np.float64]
    num_true: npt.NDArray[np.float64]
    num_false: npt.NDArray[np.float64]
    num_truth: int

    @property
    def precision(self) -> npt.NDArray[np.float64]:
        return self.num_true / (self.num_true + self.num_false)

    @property
    def recall(self) -> npt.NDArray[np.float64]:
        return self.num_true / self.num_truth


def measure_curve(matches: Matches, class_index: int, threshold_index: int) -> Curve:
    """The curve of a class; detections of the same score are let through together. Without objects recall is NaN."""
    rows = matches.found_of_class(class_index)
    counts = ~matches.is_ignored_TN[threshold_index, rows]
    is_true, scores = matches.is_true_TN[threshold_index, rows][counts], matches.scores[rows][counts]
    is_last = np.append(scores[1:] != scores[:-1], np.ones(min(len(scores), 1), bool))
    truth = matches.truth_of_class(class_index)
    return Curve(
        scores=scores[is_last],
        num_true=np.cumsum(is_true)[is_last].astype(np.float64),
        num_false=np.cumsum(~is_true)[is_last].astype(np.float64),
        num_truth=int(np.count_nonzero(~matches.is_crowd[truth])),
    )


def precision_at_recalls(matches: Matches, class_index: int, threshold_index: int) -> npt.NDArray[np.float64]:
    """[R]: the interpolated precision at 101 recalls, 0 where it is not reached; NaN without objects."""
    return ClassSampler(matches, class_index).precisions(threshold_index)


class ClassSampler:
    """The curves of one class for many weightings of the images; what does not depend on the weights is kept."""

    def __init__(self, matches: Matches, class_index: int) -> None:
        rows, truth = matches.found_of_class(class_index), matches.truth_of_class(class_index)
        is_true_TN, is_ignored_TN = matches.is_true_TN[:, rows], matches.is_ignored_TN[:, rows]
        # Behind the last right detection the curve only falls, and no recall is reached there.
        stop = int(np.flatnonzero(is_true_TN.any(axis=0))[-1]) + 1 if is_true_TN.any() else 0
        self._image_index = matches.found.image_index[rows][:stop]
        self._is_true_TN, self._is_ignored_TN = is_true_TN[:, :stop], is_ignored_TN[:, :stop]
        counted = ~matches.is_crowd[truth]
        self._truth_per_image = np.bincount(matches.truth.image_index[truth][counted], minlength=matches.num_images)

    def num_truth(self, weights_BI: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """[B]: objects of the class in each weighting."""
        product: npt.NDArray[Any] = weights_BI.astype(np.float64) @ self._truth_per_image
        return product

    @property
    def num_rows(self) -> int:
        """Detections that are weighed for each weighting."""
        return len(self._image_index)

    def average_precision(self, weights_BI: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """[B, T]: AP at each IoU threshold; NaN where a weighting has no object of the class."""
        num_truth_B = self.num_truth(weights_BI)
        weights_BN = weights_BI[:, self._image_index].astype(np.float64)
        result_BT = np.zeros((len(weights_BI), len(self._is_true_TN)))
        has_truth_B = num_truth_B > 0
        for t in range(len(self._is_true_TN)):
            recall_BP, envelope_BP = self._curves(t, weights_BN, np.where(has_truth_B, num_truth_B, 1))
            # The mean over 101 recalls: each point counts for those that it reaches and the one before does not.
            share_BP = np.diff(_count_reached(recall_BP), axis=1, prepend=0) / len(RECALLS)
            result_BT[:, t] = (envelope_BP * share_BP).sum(axis=1)
        result_BT[~has_truth_B] = np.nan
        return result_BT

    def precisions(self, threshold_index: int) -> npt.NDArray[np.float64]:
        """[R]: interpolated precision with every image once; NaN without objects of the class."""
        num_truth = self._truth_per_image.sum()
        if not num_truth:
            return np.full(len(RECALLS), np.nan)
        ones_1N = np.ones((1, len(self._image_index)))
        (recall_P,), (envelope_P,) = self._curves(threshold_index, ones_1N, np.array([num_truth]))
        position_R = np.searchsorted(recall_P, RECALLS, side="left")
        precision_R = np.zeros(len(RECALLS))
        is_reached_R = position_R < len(recall_P)
        precision_R[is_reached_R] = envelope_P[position_R[is_reached_R]]
        return precision_R

    def _curves(
        self, threshold_index: int, weights_BN: npt.NDArray[np.float64], num_truth_B: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Recall and the highest precision from it on, [B, P], at each right detection."""
        is_true = np.flatnonzero(self._is_true_TN[threshold_index])
        true_BP = np.cumsum(weights_BN[:, is_true], axis=1)
        is_ignored_N = self._is_ignored_TN[threshold_index]
        counted_BN = weights_BN * ~is_ignored_N if is_ignored_N.any() else weights_BN
        all_BP = np.cumsum(counted_BN, axis=1)[:, is_true]
        # 2**-52 is pycocotools' guard against a division by 0; an image of weight 0 may stand in front.
        precision_BP = true_BP / (all_BP + np.spacing(1.0))
        envelope_BP = np.maximum.accumulate(precision_BP[:, ::-1], axis=1)[:, ::-1]
        return true_BP / num_truth_B[:, None], envelope_BP


def _count_reached(recall_BP: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """How many of RECALLS are at most each recall: a guess by arithmetic, put right where rounding misled it."""
    last = len(RECALLS) - 1
    index_BP = (recall_BP * last).astype(np.int64)
    index_BP += RECALLS[np.minimum(index_BP + 1, last)] <= recall_BP
    index_BP = np.minimum(index_BP, last)
    index_BP -= RECALLS[index_BP] > recall_BP
    return index_BP + 1
