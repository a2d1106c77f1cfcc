"""Peaks of the heat maps of CenterNet (arXiv:1904.07850, section 4), and the values of other maps at them."""

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


def at_cells(map_BHWC: tf.Tensor, cell_BM: tf.Tensor) -> tf.Tensor:
    """Return the values [B, M, C] of a map at cells, given by their row-major indices."""
    cells_BNC = tf.reshape(map_BHWC, [tf.shape(map_BHWC)[0], -1, map_BHWC.shape[-1]])
    return tf.gather(cells_BNC, cell_BM, batch_dims=1)
