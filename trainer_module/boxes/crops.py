"""Features of regions: bilinear samples of one feature map for each box (arXiv:1703.06870, section 3, RoIAlign).

The sampling is that of `tf.image.crop_and_resize` and of `multilevel_matmul_crop_and_resize` in the Object Detection
API: the corner samples are at the corners of the box, and cells outside of a feature map are 0. TensorFlow's operation
is several times as fast as gathers, but XLA does not have it, and it samples one map. Pyramids, whose crops are small,
and XLA therefore use gathers. The gradient never uses the operation's own: its threads add to the same cells without a
lock, and part of the sum can be lost.
"""

import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from detloom.trainer_module.runtime.numerics import is_compiled_by_xla

_UNIT_SIDE_PX = 224.0  # of the images that ResNets are trained on (arXiv:1612.03144, equation 1)
_MIN_SHARE = 1e-12  # of the image; a padding box has no area, and the logarithm of 0 is infinite


def choose_levels(boxes_yxyx_rel_BP4: tf.Tensor, num_levels: int, network_hw: tuple[int, int]) -> tf.Tensor:
    """Return the index of the feature map of each box, int32 [B, P] (arXiv:1612.03144, equation 1).

    A box of 224 pixels has the last map but one, as in the reference.
    """
    height, width = tf.unstack(boxes_yxyx_rel_BP4[..., 2:] - boxes_yxyx_rel_BP4[..., :2], axis=-1)
    share_BP = tf.sqrt(tf.maximum(height * width, _MIN_SHARE))
    ratio = tf.sqrt(tf.cast(network_hw[0] * network_hw[1], tf.float32)) / _UNIT_SIDE_PX
    octaves_BP = tf.math.floordiv(tf.math.log(share_BP * ratio), tf.math.log(2.0))
    levels_BP = tf.cast(octaves_BP + (num_levels - 2), tf.int32)
    return tf.clip_by_value(levels_BP, 0, num_levels - 1)


def crop_features(
    features: Sequence[tf.Tensor], boxes_yxyx_rel_BP4: tf.Tensor, network_hw: tuple[int, int], side: int
) -> tf.Tensor:
    """Sample a square of `side` x `side` cells for each box, [B, P, side, side, channels].

    Args:
        features: feature maps [B, H, W, channels], from fine to coarse.
        boxes_yxyx_rel_BP4: relative to each feature map; there is no gradient for them.
    """
    sizes_hw = [tuple(feature.shape[1:3]) for feature in features]
    channels = features[0].shape[-1]
    cells_BNC = tf.concat([tf.reshape(map_, [tf.shape(map_)[0], -1, channels]) for map_ in features], axis=1)
    starts = [sum(math.prod(hw) for hw in sizes_hw[:index]) for index in range(len(sizes_hw))]
    boxes_yxyx_rel_BP4 = tf.stop_gradient(boxes_yxyx_rel_BP4)
    if len(features) == 1:
        levels_BP = tf.zeros(tf.shape(boxes_yxyx_rel_BP4)[:2], tf.int32)
    else:
        levels_BP = choose_levels(boxes_yxyx_rel_BP4, len(features), network_hw)
    hw_BP2 = tf.gather(tf.constant(sizes_hw, tf.int32), levels_BP)
    start_BP = tf.gather(tf.constant(starts, tf.int32), levels_BP)
    num_cells = sum(math.prod(hw) for hw in sizes_hw)
    corners = _corners(boxes_yxyx_rel_BP4, start_BP, hw_BP2, (side, side))

    @tf.custom_gradient
    def sample(cells_BNC: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        if len(features) > 1 or is_compiled_by_xla():
            crops = _gather_corners(cells_BNC, corners)
        else:
            feature_BHWC = tf.reshape(cells_BNC, [-1, *sizes_hw[0], channels])
            crops = _crop_one_map(feature_BHWC, boxes_yxyx_rel_BP4, side)
        return crops, lambda gradient: _scatter_corners(gradient, corners, num_cells)

    return tf.ensure_shape(sample(cells_BNC), [None, boxes_yxyx_rel_BP4.shape[1], side, side, channels])


def crop_masks(
    masks_BGHW: tf.Tensor, indices_BN: tf.Tensor, boxes_yxyx_rel_BN4: tf.Tensor, mask_hw: tuple[int, int]
) -> tf.Tensor:
    """Sample one mask inside of each box like a feature map, float32 [B, N, h, w], 0 to 1.

    Args:
        indices_BN: int32, index of the mask of each box.
        boxes_yxyx_rel_BN4: relative to the masks.
    """
    height, width = masks_BGHW.shape[2:]
    pixels_BL = tf.reshape(masks_BGHW, [tf.shape(masks_BGHW)[0], -1])
    hw_BN2 = tf.broadcast_to(tf.constant([height, width]), [*tf.unstack(tf.shape(indices_BN)), 2])
    crops_BNhw = tf.zeros([])
    for index_BNhw, weight_BNhw in _corners(boxes_yxyx_rel_BN4, indices_BN * (height * width), hw_BN2, mask_hw):
        crops_BNhw += tf.cast(tf.gather(pixels_BL, index_BNhw, batch_dims=1), tf.float32) * weight_BNhw
    return crops_BNhw


_Corners = Sequence[tuple[tf.Tensor, tf.Tensor]]


def _corners(
    boxes_yxyx_rel_BP4: tf.Tensor, start_BP: tf.Tensor, hw_BP2: tf.Tensor, samples_hw: tuple[int, int]
) -> _Corners:
    """Return index and weight, [B, P, h, w], of each of the four cells around every sample.

    Args:
        start_BP: index of the first cell of the box's map.
        hw_BP2: rows and columns of this map.
        samples_hw: rows and columns of samples.
    """
    ymin, xmin, ymax, xmax = tf.unstack(boxes_yxyx_rel_BP4, axis=-1)
    rows_BPh = _sample_positions(ymin, ymax, hw_BP2[..., 0], samples_hw[0])
    columns_BPw = _sample_positions(xmin, xmax, hw_BP2[..., 1], samples_hw[1])
    corners = []
    for row_BPh, row_weight_BPh in _neighbours(rows_BPh, hw_BP2[..., 0]):
        for column_BPw, column_weight_BPw in _neighbours(columns_BPw, hw_BP2[..., 1]):
            first_BPh = start_BP[..., tf.newaxis] + row_BPh * hw_BP2[..., 1:]
            index_BPhw = first_BPh[..., :, tf.newaxis] + column_BPw[..., tf.newaxis, :]
            weight_BPhw = row_weight_BPh[..., :, tf.newaxis] * column_weight_BPw[..., tf.newaxis, :]
            corners.append((index_BPhw, weight_BPhw))
    return corners


def _gather_corners(cells_BNC: tf.Tensor, corners: _Corners) -> tf.Tensor:
    """Return the weighted sums of cells, [B, P, S, S, C]."""
    crops = tf.zeros([], cells_BNC.dtype)
    for index_BPSS, weight_BPSS in corners:
        sampled = tf.gather(cells_BNC, index_BPSS, batch_dims=1)
        crops += sampled * tf.cast(weight_BPSS, cells_BNC.dtype)[..., tf.newaxis]
    return crops


def _scatter_corners(gradient_BPSSC: tf.Tensor, corners: _Corners, num_cells: int) -> tf.Tensor:
    """Return the gradient of `_gather_corners` with respect to the cells, [B, N, C].

    The sums are float32: in bfloat16, a sum of 300 equal terms, one for each box, would stop at the 256th.
    """
    batch_size, channels = tf.shape(gradient_BPSSC)[0], gradient_BPSSC.shape[-1]
    first_B111 = tf.reshape(num_cells * tf.range(batch_size), [-1, 1, 1, 1])
    float_BPSSC = tf.cast(gradient_BPSSC, tf.float32)
    total = tf.zeros([])
    for index_BPSS, weight_BPSS in corners:
        weighted = float_BPSSC * weight_BPSS[..., tf.newaxis]
        total += tf.math.unsorted_segment_sum(weighted, first_B111 + index_BPSS, batch_size * num_cells)
    return tf.cast(tf.reshape(total, [-1, num_cells, channels]), gradient_BPSSC.dtype)


def _crop_one_map(feature_BHWC: tf.Tensor, boxes_yxyx_rel_BP4: tf.Tensor, side: int) -> tf.Tensor:
    """Sample with TensorFlow's operation, [B, P, side, side, C].

    The operation returns 0 for every sample that rounding moves out of the map. A border of zeros makes such a sample
    lose only as much as it is outside.
    """
    height, width = feature_BHWC.shape[1:3]
    last_4 = tf.constant([height - 1, width - 1, height - 1, width - 1], tf.float32)
    bordered = tf.pad(tf.cast(feature_BHWC, tf.float32), [[0, 0], [1, 1], [1, 1], [0, 0]])
    boxes_BP4 = (boxes_yxyx_rel_BP4 * last_4 + 1.0) / (last_4 + 2.0)
    batch_size, num_boxes = tf.unstack(tf.shape(boxes_BP4)[:2])
    images_N = tf.repeat(tf.range(batch_size), num_boxes)
    crops = tf.image.crop_and_resize(bordered, tf.reshape(boxes_BP4, [-1, 4]), images_N, [side, side])
    return tf.cast(tf.reshape(crops, [batch_size, num_boxes, *crops.shape[1:]]), feature_BHWC.dtype)


def _sample_positions(low_BP: tf.Tensor, high_BP: tf.Tensor, size_BP: tf.Tensor, side: int) -> tf.Tensor:
    """Return the positions [B, P, side] of the samples along one axis, in cells; the first and last are the edges."""
    last_BP1 = tf.cast(size_BP - 1, tf.float32)[..., tf.newaxis]
    low_BP1, high_BP1 = low_BP[..., tf.newaxis] * last_BP1, high_BP[..., tf.newaxis] * last_BP1
    if side == 1:
        return (low_BP1 + high_BP1) / 2
    return low_BP1 + tf.linspace(0.0, 1.0, side) * (high_BP1 - low_BP1)


def _neighbours(positions_BPS: tf.Tensor, size_BP: tf.Tensor) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Return index and weight [B, P, S] of the cells before and after each position; outside the weight is 0."""
    before_BPS = tf.floor(positions_BPS)
    share_BPS = positions_BPS - before_BPS
    neighbours = []
    for offset, weight_BPS in ((0, 1.0 - share_BPS), (1, share_BPS)):
        index_BPS = tf.cast(before_BPS, tf.int32) + offset
        last_BP1 = (size_BP - 1)[..., tf.newaxis]
        is_inside_BPS = (index_BPS >= 0) & (index_BPS <= last_BP1)
        neighbours.append((tf.clip_by_value(index_BPS, 0, last_BP1), tf.where(is_inside_BPS, weight_BPS, 0.0)))
    return neighbours
