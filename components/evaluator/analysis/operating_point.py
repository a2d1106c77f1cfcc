"""From which score on should detections be used?"""

from dataclasses import dataclass

import numpy as np

from detloom.components.evaluator.analysis.average_precision import Curve


@dataclass(frozen=True, kw_only=True)
class OperatingPoint:
    """What a class gets when detections of at least `min_score` are used, at IoU 0.50."""

    min_score: float
    precision: float
    recall: float
    F1: float
    num_true: int
    num_false: int
    num_missed: int


def best_f1_point(curve: Curve) -> OperatingPoint | None:
    """Greatest harmonic mean of precision and recall; of equal ones the highest score. None without right detections.

    F1 = 2 true / (true + false + objects): van Rijsbergen, "Information Retrieval", 1979, chapter 7.
    """
    if not curve.num_truth or not len(curve.scores) or not curve.num_true[-1]:
        return None
    return _point(curve, int(np.argmax(_f1(curve))))


def point_of_precision(curve: Curve, min_precision: float) -> OperatingPoint | None:
    """The most objects found with at least that precision; None where no score reaches it."""
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
