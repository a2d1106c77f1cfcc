"""Which classes are taken for each other, and for background."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detloom.components.evaluator.analysis.matches import Boxes, Matches
from detloom.components.evaluator.analysis.overlaps import pairwise_iou

MIN_IOU = 0.5


@dataclass(frozen=True, kw_only=True)
class Confusion:
    """Counts at one threshold of the score.

    Attributes:
        class_names: K names; row and column K stand for background.
        counts: [K + 1][K + 1], the true class down, the detected class across. The last column holds missed objects,
            the last row detections of nothing; its corner is 0.
    """

    class_names: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    min_scores: tuple[float, ...]


def count_confusion(matches: Matches, class_names: tuple[str, ...], min_scores: tuple[float, ...]) -> Confusion:
    """Pair detections and objects one to one within an image at IoU 0.50 and count.

    An object is first paired with a detection of its own class, as in the metrics; what is left over on both sides is
    then paired across classes, the greatest overlap first. Detections on a crowd of their class do not count.

    Args:
        min_scores: of each class, least score of the detections that are used.
    """
    num_classes = len(class_names)
    counts = np.zeros((num_classes + 1, num_classes + 1), np.int64)
    is_used = matches.scores >= np.array([*min_scores, 0.0])[matches.found.class_index]
    # Matching runs from the highest score down: leaving out the low ones does not change who found what.
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
    """Rows that belong together."""
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
