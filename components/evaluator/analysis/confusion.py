"""Confusion matrix of detection classes, with background."""

from dataclasses import dataclass

import numpy as np

from detloom.schemas.contracts.arrays import Int32Array, Int64Array
from detloom.trainer_module.evaluation.matches import IOU_50, Matches, pairwise_iou

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
    truth_of_found = np.where(is_used, matches.truth_of_found, -1)
    is_true = is_used & matches.is_true(IOU_50)
    found_classes, truth_classes = matches.found.class_index, matches.truth.class_index
    np.add.at(counts, (found_classes[is_true], found_classes[is_true]), 1)
    is_left_G = ~matches.is_crowd
    is_left_G[truth_of_found[truth_of_found >= 0]] = False
    found, truth = np.flatnonzero(is_used & (truth_of_found < 0)), np.flatnonzero(is_left_G)
    found_rows, truth_rows = _pair_left_over(matches, found, truth)
    np.add.at(counts, (truth_classes[truth_rows], found_classes[found_rows]), 1)
    missed, background = np.setdiff1d(truth, truth_rows), np.setdiff1d(found, found_rows)
    counts[:-1, -1] = np.bincount(truth_classes[missed], minlength=num_classes)
    counts[-1, :-1] = np.bincount(found_classes[background], minlength=num_classes)
    return Confusion(
        class_names=class_names, counts=tuple(tuple(row) for row in counts.tolist()), min_scores=min_scores
    )


def _pair_left_over(matches: Matches, found: Int64Array, truth: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the paired rows among the rows `found` and `truth`."""
    pairs: list[tuple[int, int]] = []
    truth_images = matches.truth.image_index[truth]
    truth = truth[np.argsort(truth_images, kind="stable")]
    starts = np.searchsorted(np.sort(truth_images), np.arange(matches.num_images + 1))
    has_truth = starts[1:] > starts[:-1]
    found = found[has_truth[matches.found.image_index[found]]]
    found = found[np.argsort(matches.found.image_index[found], kind="stable")]
    for image_index, rows in zip(*_split_by(matches.found.image_index[found], found), strict=True):
        objects = truth[starts[image_index] : starts[image_index + 1]]
        iou = pairwise_iou(matches.found_boxes_xywh_px(rows), matches.truth_boxes_xywh_px[objects])
        while (best := iou.max()) >= MIN_IOU:
            n, g = (int(position) for position in np.argwhere(iou == best)[0])
            pairs.append((int(rows[n]), int(objects[g])))
            iou[n, :], iou[:, g] = 0, 0
    paired = np.array(pairs, np.int64).reshape(-1, 2)
    return paired[:, 0], paired[:, 1]


def _split_by(sorted_keys: Int32Array, values: Int64Array) -> tuple[list[int], list[Int64Array]]:
    keys, first = np.unique(sorted_keys, return_index=True)
    return keys.tolist(), np.split(values, first[1:]) if len(keys) else []
