"""The best overlap of a box with any anchor of a grid, without building the grid."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from detloom.schemas.model_config import MultiscaleAnchorGenerator


def best_anchor_iou(
    generator: MultiscaleAnchorGenerator, boxes_yxyx_px_N4: npt.NDArray[Any], input_hw: npt.NDArray[Any]
) -> npt.NDArray[np.float64]:
    """[N] IoU of each box with the anchor that it overlaps most, of those that `build_anchors` makes.

    The overlap of two boxes of given sizes shrinks with the distance of their centres along each side. So of all
    anchors of one level and shape the one with the nearest centre is the best, and rounding finds it.

    Args:
        boxes_yxyx_px_N4: in pixels of the network's input, with an area.
        input_hw: of the network's input, padding included; [2], or [N, 2] where pictures differ.
    """
    boxes = np.asarray(boxes_yxyx_px_N4, np.float64).reshape(-1, 4)
    hw_N2 = np.broadcast_to(np.asarray(input_hw, np.int64), (len(boxes), 2))
    # Columns one by one: each operation then runs through memory that is contiguous and in the cache.
    ymin, xmin, ymax, xmax = (np.ascontiguousarray(boxes[:, side]) for side in range(4))
    box_h, box_w, areas = ymax - ymin, xmax - xmin, (ymax - ymin) * (xmax - xmin)
    best_N = np.zeros(len(boxes))
    for level in range(generator.min_level, generator.max_level + 1):
        stride = 2**level
        distance_y = _distance_to_grid((ymin + ymax) / 2, hw_N2[:, 0], stride)
        distance_x = _distance_to_grid((xmin + xmax) / 2, hw_N2[:, 1], stride)
        for anchor_h, anchor_w in anchor_shapes(generator) * stride:
            shared_h = np.minimum(np.minimum(box_h, anchor_h), (box_h + anchor_h) / 2 - distance_y)
            shared_w = np.minimum(np.minimum(box_w, anchor_w), (box_w + anchor_w) / 2 - distance_x)
            shared = np.maximum(shared_h, 0) * np.maximum(shared_w, 0)
            np.maximum(best_N, shared / (areas + anchor_h * anchor_w - shared), out=best_N)
    return best_N


def _distance_to_grid(
    centres_N: npt.NDArray[np.float64], input_sides_N: npt.NDArray[np.int64], stride: int
) -> npt.NDArray[np.float64]:
    """[N] from each centre to the nearest place along one side; where places begin is told in `build_anchors`."""
    starts = np.where(input_sides_N % stride == 0, stride / 2, 0)
    last = -(-input_sides_N // stride) - 1
    return np.abs(centres_N - np.clip(np.rint((centres_N - starts) / stride), 0, last) * stride - starts)


def anchor_shapes(generator: MultiscaleAnchorGenerator) -> npt.NDArray[np.float64]:
    """[S, 2] height and width in strides of the anchors at one place."""
    scales = generator.anchor_scale * 2 ** (np.arange(generator.scales_per_octave) / generator.scales_per_octave)
    roots = [math.sqrt(ratio) for ratio in generator.aspect_ratios]
    return np.array([(scale / root, scale * root) for root in roots for scale in scales])
