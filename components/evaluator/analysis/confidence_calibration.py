"""Confidence calibration: compare scores with the precision of the detections that have them."""

from dataclasses import dataclass

import numpy as np

from detloom.trainer_module.evaluation.matches import IOU_50, Matches

NUM_BINS = 10


@dataclass(frozen=True, kw_only=True)
class ScoreBin:
    """Detections with scores from `low` to below `high` (the last bin includes 1); the means are None if it is empty.

    `share_true` is the share of true positives.
    """

    low: float
    high: float
    num_detections: int
    mean_score: float | None
    share_true: float | None


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Mean score and share of true positives at IoU 0.50, by bins of scores.

    Attributes:
        expected_error: expected calibration error, the mean absolute difference of the two weighted by detections (Guo
            et al., "On Calibration of Modern Neural Networks", ICML 2017, section 2); None without detections.
    """

    bins: tuple[ScoreBin, ...]
    expected_error: float | None
    num_detections: int


def measure_calibration(matches: Matches) -> Calibration:
    """Measure calibration over all classes; detections on crowds are ignored."""
    counted = ~matches.is_ignored(IOU_50)
    scores, is_true = matches.scores[counted], matches.is_true(IOU_50)[counted]
    edges = np.arange(NUM_BINS + 1) / NUM_BINS  # `linspace` would give 0.7000000000000001
    bin_N = np.clip(np.searchsorted(edges, scores, side="right") - 1, 0, NUM_BINS - 1)
    count_b = np.bincount(bin_N, minlength=NUM_BINS)
    score_b = np.bincount(bin_N, scores, minlength=NUM_BINS)
    true_b = np.bincount(bin_N, is_true, minlength=NUM_BINS)
    bins = tuple(
        ScoreBin(
            low=float(edges[b]),
            high=float(edges[b + 1]),
            num_detections=int(count),
            mean_score=float(score_b[b] / count) if count else None,
            share_true=float(true_b[b] / count) if count else None,
        )
        for b, count in enumerate(count_b)
    )
    error = float(np.abs(score_b - true_b).sum() / len(scores)) if len(scores) else None
    return Calibration(bins=bins, expected_error=error, num_detections=len(scores))
