"""Does a score of 0.8 mean that 8 of 10 are right?"""

from dataclasses import dataclass

import numpy as np

from detloom.components.evaluator.analysis.matches import IOU_50, Matches

NUM_BINS = 10


@dataclass(frozen=True, kw_only=True)
class ScoreBin:
    """Detections with scores from `low` to below `high` (the last bin holds 1 too); both means None without any."""

    low: float
    high: float
    num_detections: int
    mean_score: float | None
    share_true: float | None


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Scores beside the share of right detections at IoU 0.50.

    Attributes:
        expected_error: mean distance of the two over the detections (expected calibration error: Guo et al., "On
            Calibration of Modern Neural Networks", ICML 2017, section 2); None without detections.
    """

    bins: tuple[ScoreBin, ...]
    expected_error: float | None
    num_detections: int


def measure_calibration(matches: Matches, class_index: int | None = None, num_bins: int = NUM_BINS) -> Calibration:
    """Of one class, or of all detections together; detections on crowds count neither way."""
    rows = slice(None) if class_index is None else matches.found_of_class(class_index)
    counted = ~matches.is_ignored_TN[IOU_50, rows]
    scores, is_true = matches.scores[rows][counted], matches.is_true_TN[IOU_50, rows][counted]
    edges = np.linspace(0, 1, num_bins + 1)
    bin_N = np.clip(np.searchsorted(edges, scores, side="right") - 1, 0, num_bins - 1)
    count_b = np.bincount(bin_N, minlength=num_bins)
    score_b = np.bincount(bin_N, scores, minlength=num_bins)
    true_b = np.bincount(bin_N, is_true, minlength=num_bins)
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
