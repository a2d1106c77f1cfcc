"""Precision and recall of boxes from matches, equal to `COCOeval.accumulate` of pycocotools."""

import numpy as np
import numpy.typing as npt

from detloom.schemas.contracts.arrays import BoolArray, Float64Array, Int32Array, Int64Array, Uint8Array
from detloom.trainer_module.evaluation.matches import IOU_THRESHOLDS, Matches

RECALLS = np.linspace(0.0, 1.0, 101)  # R: recall points, computed as in pycocotools
MAX_DETECTIONS_M = (1, 10, 100)  # detections per image and class for AR1, AR10, AR100


def compute_box_curves(matches: Matches, is_used_I: BoolArray | None = None) -> tuple[Float64Array, Float64Array]:
    """Compute precision [T, R, K, A] with 100 detections and recall [T, K, A, M]; -1 without objects.

    Args:
        is_used_I: images that count; None for all.
    """
    num_classes, num_sizes = matches.num_classes, len(matches.true_AN)
    precision_TRKA = np.full((len(IOU_THRESHOLDS), len(RECALLS), num_classes, num_sizes), -1.0)
    recall_TKAM = np.full((len(IOU_THRESHOLDS), num_classes, num_sizes, len(MAX_DETECTIONS_M)), -1.0)
    for k in range(num_classes):
        rows = _used(matches.found_of_class(k), matches.found.image_index, is_used_I)
        truth = _used(matches.truth_of_class(k), matches.truth.image_index, is_used_I)
        num_truth_A = np.count_nonzero(~matches.is_outside_GA[truth], axis=0)
        for size in np.flatnonzero(num_truth_A):
            curves = SizeCurves(matches.true_AN[size, rows], matches.ignored_AN[size, rows], int(num_truth_A[size]))
            for t in range(len(IOU_THRESHOLDS)):
                precision_TRKA[t, :, k, size] = curves.precision_at_recalls(t)
            recall_TKAM[:, k, size] = curves.recalls(matches.rank[rows])
    return precision_TRKA, recall_TKAM


def precision_at_recalls(matches: Matches, class_index: int, threshold_index: int) -> Float64Array:
    """Return the interpolated precision [R] at 101 recalls: 0 for a recall that is not reached, NaN without objects."""
    rows, truth = matches.found_of_class(class_index), matches.truth_of_class(class_index)
    num_truth = int(np.count_nonzero(~matches.is_crowd[truth]))
    if not num_truth:
        return np.full(len(RECALLS), np.nan)
    return SizeCurves(matches.true_AN[0, rows], matches.ignored_AN[0, rows], num_truth).precision_at_recalls(
        threshold_index
    )


def _used(rows: slice, image_index: Int32Array, is_used_I: BoolArray | None) -> slice | Int64Array:
    """Return those of the rows whose image counts."""
    return rows if is_used_I is None else rows.start + np.flatnonzero(is_used_I[image_index[rows]])


class SizeCurves:
    """The curves of one class and range of sizes from its N detections, sorted by descending score."""

    def __init__(self, true_N: npt.NDArray[np.uint16], ignored_N: npt.NDArray[np.uint16], num_truth: int) -> None:
        self._true_rows, self._ignored_rows = np.flatnonzero(true_N), np.flatnonzero(ignored_N)
        self._true, self._ignored = true_N[self._true_rows], ignored_N[self._ignored_rows]
        self._num_truth = num_truth

    def precision_at_recalls(self, threshold_index: int) -> Float64Array:
        """Return the interpolated precision [R]; 0 for a recall that is not reached."""
        bit = 1 << threshold_index
        rows_P = self._true_rows[(self._true & bit) != 0]
        ignored = self._ignored_rows[(self._ignored & bit) != 0]
        num_true_P = np.arange(1, len(rows_P) + 1, dtype=np.float64)
        num_found_P = (rows_P + 1 - np.searchsorted(ignored, rows_P)).astype(np.float64)
        # 2**-52 is pycocotools' guard against division by 0.
        precision_P = num_true_P / (num_found_P + np.spacing(1.0))
        envelope_P = np.maximum.accumulate(precision_P[::-1])[::-1]
        position_R = np.searchsorted(num_true_P / self._num_truth, RECALLS, side="left")
        result_R = np.zeros(len(RECALLS))
        is_reached_R = position_R < len(rows_P)
        result_R[is_reached_R] = envelope_P[position_R[is_reached_R]]
        return result_R

    def recalls(self, rank_N: Uint8Array) -> Float64Array:
        """Return [T, M]: the recall of all detections, of which at most so many per image count."""
        rank, bits = rank_N[self._true_rows], (1 << np.arange(len(IOU_THRESHOLDS)))[:, np.newaxis]
        counts = [np.count_nonzero(self._true[rank < limit] & bits, axis=1) for limit in MAX_DETECTIONS_M]
        recalls: Float64Array = np.stack(counts, axis=1) / self._num_truth
        return recalls
