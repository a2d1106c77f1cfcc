"""Find overlapping boxes of one class in an image: objects that were labelled twice."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_PAIRS = 100  # pairs kept for display; all are counted
_BLOCK_ELEMENTS = 1 << 18  # IoUs computed at a time: 2 MB per array, independent of the number of boxes
_MAX_COORDINATE = 1e9  # far beyond any image side; products stay finite


@dataclass(frozen=True)
class Overlaps:
    """Pairs of boxes of one class whose IoU is at least the requested value.

    Attributes:
        num_pairs: number of all pairs.
        num_surplus: boxes that overlap with an earlier one, which would not exist if each object were labelled once.
        pairs: rows of the first pairs, (earlier, later), in order.
    """

    num_pairs: int = 0
    num_surplus: int = 0
    pairs: tuple[tuple[int, int], ...] = ()


def find_overlaps(
    boxes_yxyx_N4: npt.NDArray[Any],
    class_ids_N: npt.NDArray[Any],
    is_crowd_N: npt.NDArray[Any] | None = None,
    *,
    min_iou: float,
) -> Overlaps:
    """Compare the boxes of each class with each other; coordinates can be relative or in pixels.

    Crowds are skipped, because objects are inside them. A box without area, inverted or not finite has no overlap.
    """
    ymin, xmin, ymax, xmax = np.asarray(boxes_yxyx_N4, np.float64).reshape(-1, 4).T
    is_usable = (ymin < ymax) & (xmin < xmax) & (ymin > -_MAX_COORDINATE) & (xmin > -_MAX_COORDINATE)
    is_usable &= (ymax < _MAX_COORDINATE) & (xmax < _MAX_COORDINATE)
    if is_crowd_N is not None and len(is_crowd_N) == len(ymin):
        is_usable &= ~np.asarray(is_crowd_N, bool)
    rows_N = is_usable.nonzero()[0]
    if len(rows_N) < 2:
        return Overlaps()
    ymin, xmin, ymax, xmax = ymin[rows_N], xmin[rows_N], ymax[rows_N], xmax[rows_N]
    ids, areas = np.asarray(class_ids_N)[rows_N], (ymax - ymin) * (xmax - xmin)
    num_pairs, is_surplus = 0, np.zeros(len(rows_N), bool)
    pairs: list[tuple[int, int]] = []
    step = max(1, _BLOCK_ELEMENTS // len(rows_N))
    for start in range(0, len(rows_N), step):
        # Compare the rows of a block with all columns from its first row on, so that each pair occurs once.
        block, rest = slice(start, start + step), slice(start, None)
        height = np.minimum.outer(ymax[block], ymax[rest]) - np.maximum.outer(ymin[block], ymin[rest])
        width = np.minimum.outer(xmax[block], xmax[rest]) - np.maximum.outer(xmin[block], xmin[rest])
        shared = np.maximum(height, 0) * np.maximum(width, 0)
        # IoU = shared / (sum - shared) >= min_iou, without a division; shared > 0 only if they overlap.
        is_pair = shared * (1 + min_iou) >= min_iou * np.add.outer(areas[block], areas[rest])
        is_pair &= np.equal.outer(ids[block], ids[rest])
        if np.count_nonzero(is_pair) > len(is_pair):  # each box always overlaps with itself
            found = np.argwhere(np.triu(is_pair, k=1))
            num_pairs += len(found)
            is_surplus[start + found[:, 1]] = True
            pairs += [(int(rows_N[start + i]), int(rows_N[start + j])) for i, j in found[: MAX_PAIRS - len(pairs)]]
    return Overlaps(num_pairs, int(np.count_nonzero(is_surplus)), tuple(pairs))
