"""Count boxes that repeat another box of their class: objects that were labelled twice."""

import numpy as np

from detloom.schemas.contracts.arrays import Array

_BLOCK_ELEMENTS = 1 << 18  # IoUs computed at a time: 2 MB per array, independent of the number of boxes


def count_repeated_boxes(boxes_yxyx_N4: Array, class_ids_N: Array, *, min_iou: float) -> int:
    """Return how many boxes have an IoU of at least `min_iou` with an earlier box of their class.

    Args:
        boxes_yxyx_N4: finite boxes with an area, relative or in pixels.
    """
    ymin, xmin, ymax, xmax = np.asarray(boxes_yxyx_N4, np.float64).reshape(-1, 4).T
    ids, areas = np.asarray(class_ids_N), (ymax - ymin) * (xmax - xmin)
    is_repeated = np.zeros(len(areas), bool)
    step = max(1, _BLOCK_ELEMENTS // max(1, len(areas)))
    for start in range(0, len(areas), step):
        # Compare the rows of a block with all columns from its first row on, so that each pair occurs once.
        block, rest = slice(start, start + step), slice(start, None)
        height = np.minimum.outer(ymax[block], ymax[rest]) - np.maximum.outer(ymin[block], ymin[rest])
        width = np.minimum.outer(xmax[block], xmax[rest]) - np.maximum.outer(xmin[block], xmin[rest])
        shared = np.maximum(height, 0) * np.maximum(width, 0)
        # IoU = shared / (sum - shared) >= min_iou, without a division.
        is_pair = shared * (1 + min_iou) >= min_iou * np.add.outer(areas[block], areas[rest])
        is_pair &= np.equal.outer(ids[block], ids[rest])
        if np.count_nonzero(is_pair) > len(is_pair):  # each box always overlaps with itself
            is_repeated[rest] |= np.triu(is_pair, k=1).any(axis=0)
    return int(np.count_nonzero(is_repeated))
