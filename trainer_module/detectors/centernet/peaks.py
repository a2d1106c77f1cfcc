"""Peaks of the heat maps of CenterNet (arXiv:1904.07850, section 4)."""

from typing import NamedTuple

import tensorflow as tf

_SAME = 1e-6  # a value this close to the maximum around it is a peak, as in the reference


class Centers(NamedTuple):
    """The peaks of the class map, `M` for each image, in cells.

    Attributes:
        cell_BM: int32, row-major index.
        corner_BM2: float32, row and column of the cell.
        boxes_yxyx_BM4: the boxes around the centres, clipped to the map.
    """

    cell_BM: tf.Tensor
    corner_BM2: tf.Tensor
    boxes_yxyx_BM4: tf.Tensor


def find_peaks(scores_BHWK: tf.Tensor, kernel_size: int) -> tf.Tensor:
    """Return the scores, set to 0 where a square of `kernel_size` cells has a larger score of the same class."""
    if kernel_size == 1:
        return scores_BHWK
    largest = tf.nn.max_pool2d(scores_BHWK, kernel_size, 1, "SAME")
    return tf.where(largest - scores_BHWK < _SAME, scores_BHWK, 0.0)
