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
    sampler = ClassSampler(matches, class_index)
    ones = np.ones((1, matches.num_images))
    sampled: npt.NDArray[np.float64] = sampler.precisions(threshold_index, ones, sampler.num_truth(ones))[0]
    return sampled


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
        product: npt.NDArray[Any] = weights_BI @ self._truth_per_image
        return product

    def average_precision(self, weights_BI: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """[B, T]: AP at each IoU threshold; NaN where a weighting has no object of the class."""
        num_truth_B = self.num_truth(weights_BI)
        columns = [self.precisions(t, weights_BI, num_truth_B).mean(axis=1) for t in range(len(self._is_true_TN))]
        return np.stack(columns, axis=1)

    def precisions(
        self, threshold_index: int, weights_BI: npt.NDArray[np.float64], num_truth_B: npt.NDArray[Any]
    ) -> npt.NDArray[np.float64]:
        """[B, R]: interpolated precision; NaN where a weighting has no object of the class."""
        is_true = np.flatnonzero(self._is_true_TN[threshold_index])
        result_BR = np.zeros((len(weights_BI), len(RECALLS)))
        result_BR[num_truth_B == 0] = np.nan
        if not len(is_true):
            return result_BR
        weights_BN = weights_BI[:, self._image_index]
        true_BP = np.cumsum(weights_BN[:, is_true], axis=1)
        all_BN = np.cumsum(weights_BN * ~self._is_ignored_TN[threshold_index], axis=1)
        # 2**-52 is pycocotools' guard against a division by 0; an image of weight 0 may stand in front.
        precision_BP = true_BP / (all_BN[:, is_true] + np.spacing(1.0))
        envelope_BP = np.maximum.accumulate(precision_BP[:, ::-1], axis=1)[:, ::-1]
        for b in np.flatnonzero(num_truth_B):
            position_R = np.searchsorted(true_BP[b] / num_truth_B[b], RECALLS, side="left")
            is_reached_R = position_R < len(is_true)
            result_BR[b, is_reached_R] = envelope_BP[b, position_R[is_reached_R]]
        return result_BR
