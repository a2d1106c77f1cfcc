"""Confusion matrix of detection classes, with background."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detloom.components.evaluator.analysis.matches import Boxes, Matches, pairwise_iou

MIN_IOU = 0.5


@dataclass(frozen=True, kw_only=True)
class Confusion:
    """Confusion matrix at one score threshold per class.

    Attributes:
        class_names: K names; row and column K are background.
        counts: [K + 1][K + 1], rows are true classes, columns detected classes. The last column counts missed objects,
            the last row detections of background; their common cell is 0.
    """

    class_names: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    min_scores: tuple[float, ...]


def count_confusion(matches: Matches, class_names: tuple[str, ...], min_scores: tuple[float, ...]) -> Confusion:
    """Pair detections and objects one to one within an image at IoU 0.50, and count the pairs.

    Detections are first paired with objects of their own class, as in the metrics; the remaining ones are then paired
    across classes, in the order of decreasing IoU. Detections on a crowd of their class are ignored.

    Args:
        min_scores: score threshold of each class.
    """
    num_classes = len(class_names)
    counts = np.zeros((num_classes + 1, num_classes + 1), np.int64)
    is_used = matches.scores >= np.array([*min_scores, 0.0])[matches.found.class_index]
    # Matching starts from the highest score, so a score threshold does not change the remaining matches.
    truth_of_found = np.where(is_used, matches.truth_of_found_TN[0], -1)
    is_true = is_used & matches.is_true_TN[0]
    np.add.at(counts, (matches.found.class_index[is_true], matches.found.class_index[is_true]), 1)
    is_left_N = is_used & (truth_of_found < 0)
    is_left_G = ~matches.is_crowd
    is_left_G[truth_of_found[truth_of_found >= 0]] = False
    found, truth = matches.found.take(np.flatnonzero(is_left_N)), matches.truth.take(np.flatnonzero(is_left_G))
    found_rows, truth_rows = _pair_left_over(found, truth)
    np.add.at(counts, (truth.class_index[truth_rows], found.class_index[found_rows]), 1)
    counts[:-1, -1] = np.bincount(np.delete(truth.class_index, truth_rows), minlength=num_classes)
    counts[-1, :-1] = np.bincount(np.delete(found.class_index, found_rows), minlength=num_classes)
    return Confusion(
        class_names=class_names, counts=tuple(tuple(row) for row in counts.tolist()), min_scores=min_scores
    )


def _pair_left_over(found: Boxes, truth: Boxes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the paired rows of `found` and of `truth`."""
    pairs: list[tuple[int, int]] = []
    by_image = np.argsort(truth.image_index, kind="stable")
    starts = np.searchsorted(truth.image_index[by_image], np.arange(found.image_index.max(initial=-1) + 2))
    order = np.argsort(found.image_index, kind="stable")
    for image_index, rows in zip(*_split_by(found.image_index[order], order), strict=True):
        objects = by_image[starts[image_index] : starts[image_index + 1]]
        if not len(objects):
            continue
        iou = pairwise_iou(found.boxes_xywh_px[rows], truth.boxes_xywh_px[objects])
        while (best := iou.max()) >= MIN_IOU:
            n, g = (int(position) for position in np.argwhere(iou == best)[0])
            pairs.append((int(rows[n]), int(objects[g])))
            iou[n, :], iou[:, g] = 0, 0
    paired = np.array(pairs, np.int64).reshape(-1, 2)
    return paired[:, 0], paired[:, 1]


def _split_by(
    sorted_keys: npt.NDArray[np.int32], values: npt.NDArray[np.int64]
) -> tuple[list[int], list[npt.NDArray[np.int64]]]:
    keys, first = np.unique(sorted_keys, return_index=True)
    return keys.tolist(), np.split(values, first[1:]) if len(keys) else []
