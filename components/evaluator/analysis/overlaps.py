"""Overlap of boxes, to the last digit as pycocotools has it."""

from typing import Any

import numpy as np
import numpy.typing as npt


def pairwise_iou(
    boxes1_xywh_px: npt.NDArray[Any],
    boxes2_xywh_px: npt.NDArray[Any],
    is_crowd2: npt.NDArray[np.bool_] | None = None,
) -> npt.NDArray[np.float64]:
    """Intersection over union, [..., N, M], of boxes [..., N, 4] with boxes [..., M, 4]; 0 where they do not meet.

    With a crowd of `is_crowd2` [..., M] it is the intersection over the area of the first box alone (`bbIou` in
    pycocotools' maskApi.c).
    """
    first = np.asarray(boxes1_xywh_px, np.float64)[..., :, np.newaxis, :]
    second = np.asarray(boxes2_xywh_px, np.float64)[..., np.newaxis, :, :]
    start = np.maximum(first[..., :2], second[..., :2])
    sides = np.minimum(first[..., :2] + first[..., 2:], second[..., :2] + second[..., 2:]) - start
    shared = sides[..., 0] * sides[..., 1]
    area1, area2 = first[..., 2] * first[..., 3], second[..., 2] * second[..., 3]
    union = area1 + area2 - shared
    if is_crowd2 is not None:
        union = np.where(np.asarray(is_crowd2)[..., np.newaxis, :], area1, union)
    meet = (sides > 0).all(axis=-1)
    return np.divide(shared, union, out=np.zeros_like(shared), where=meet)
