"""Anchors: the boxes that the outputs of the network are relative to. Imports no TensorFlow.

All arithmetic is float32 and in the order of the anchor generators of the Object Detection API. Ties between anchors
there are ties here, so that every box is matched to the same anchor.
"""

from collections.abc import Sequence

import numpy as np

from detloom.schemas.contracts.arrays import Float32Array
from detloom.schemas.model.detector import (
    AnchorGenerator,
    GridAnchorGenerator,
    MultiscaleAnchorGenerator,
    SsdAnchorGenerator,
)
from detloom.schemas.model.network import FeatureExtractor
from detloom.trainer_module.layers.necks.pyramid_levels import padded_hw, pyramid_levels

_LOWEST_LAYER_SHAPES = ((0.1, 1.0), (None, 2.0), (None, 0.5))  # the reference's scale (None: of the layer) and ratio


def feature_hw(image_hw: tuple[int, int], level: int) -> tuple[int, int]:
    """Return the size of pyramid level `level`: each stride-2 convolution with 'same' padding rounds up."""
    return -(-image_hw[0] // 2**level), -(-image_hw[1] // 2**level)


def feature_hws(extractor: FeatureExtractor, image_hw: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    """Return the size of each feature map that the heads get, from fine to coarse, for images of `image_hw`.

    The network first pads the images to `pad_to_multiple`; the anchors stay relative to the unpadded image.
    """
    padded = padded_hw(image_hw, extractor.pad_to_multiple)
    return tuple(feature_hw(padded, level) for level in pyramid_levels(extractor.neck))


def build_anchors(
    config: AnchorGenerator, image_hw: tuple[int, int], feature_hws: Sequence[tuple[int, int]]
) -> Float32Array:
    """Return the anchors of all feature maps, float32 [A, 4] yxyx relative to the image and not clipped to it.

    They are ordered by feature map from fine to coarse, row, column, and shape. The order of shapes is that of the
    Object Detection API, so that the outputs of its heads keep their meaning.
    """
    match config:
        case MultiscaleAnchorGenerator():
            levels = _multiscale_levels(config, image_hw, feature_hws)
        case SsdAnchorGenerator():
            levels = _ssd_levels(config, image_hw, feature_hws)
        case GridAnchorGenerator():
            (hw,) = feature_hws
            levels = [_relative(_grid_px(config, hw), image_hw)]
    return np.concatenate(levels)


def build_rpn_anchors(
    config: GridAnchorGenerator | MultiscaleAnchorGenerator, feature_hws: Sequence[tuple[int, int]]
) -> Float32Array:
    """Return the anchors of the first stage of a Faster R-CNN, float32 [A, 4] yxyx in pixels of the network's input.

    The order is that of `build_anchors`. As in the reference, multiscale grids always start at half a stride, and
    nothing is clipped to the image.
    """
    match config:
        case GridAnchorGenerator():
            (hw,) = feature_hws
            return _grid_px(config, hw)
        case MultiscaleAnchorGenerator():
            levels = []
            for level, hw in enumerate(feature_hws, start=config.min_level):
                levels.append(_multiscale_px(config, hw, (2**level,) * 2, (2 ** (level - 1),) * 2))
            return np.concatenate(levels)
    raise AssertionError(f"no anchors in pixels: {config}")


def num_anchors_per_location(config: AnchorGenerator) -> tuple[int, ...]:
    """Return the number of anchors per location for each feature map."""
    match config:
        case MultiscaleAnchorGenerator():
            count = len(config.aspect_ratios) * config.scales_per_octave
            return (count,) * (config.max_level - config.min_level + 1)
        case SsdAnchorGenerator():
            return tuple(len(shapes) for shapes in _ssd_shapes(config))
        case GridAnchorGenerator():
            return (len(config.aspect_ratios) * len(config.scales),)
    raise AssertionError(f"no such anchor generator: {config}")


def _multiscale_levels(
    config: MultiscaleAnchorGenerator, image_hw: tuple[int, int], feature_hws: Sequence[tuple[int, int]]
) -> list[Float32Array]:
    """Start the grid at half a stride, or at 0 along a side that is not a multiple of the stride.

    With `strides_from_feature_maps`, the stride divides the image evenly along each side (google/automl, anchors.py).
    """
    levels = []
    for level, hw in zip(range(config.min_level, config.max_level + 1), feature_hws, strict=True):
        strides, starts = [float(2**level)] * 2, [2**level / 2 if side % 2**level == 0 else 0 for side in image_hw]
        if config.strides_from_feature_maps:
            strides = [side / cells for side, cells in zip(image_hw, hw, strict=True)]
            starts = [stride / 2 for stride in strides]
        levels.append(_relative(_multiscale_px(config, hw, strides, starts), image_hw))
    return levels


def _multiscale_px(
    config: MultiscaleAnchorGenerator, hw: tuple[int, int], strides: Sequence[float], starts: Sequence[float]
) -> Float32Array:
    scales = [2 ** (i / config.scales_per_octave) for i in range(config.scales_per_octave)]
    shapes = [(scale, ratio) for ratio in config.aspect_ratios for scale in scales]
    return _tile(hw, shapes, [stride * config.anchor_scale for stride in strides], strides, starts)


def _ssd_levels(
    config: SsdAnchorGenerator, image_hw: tuple[int, int], feature_hws: Sequence[tuple[int, int]]
) -> list[Float32Array]:
    sides = np.array(image_hw, np.float32)
    base_hw = sides.min() / sides * np.array([config.base_anchor_height, config.base_anchor_width], np.float32)
    levels = []
    for i, (hw, shapes) in enumerate(zip(feature_hws, _ssd_shapes(config), strict=True)):
        steps, starts = np.float32(1) / np.array(hw, np.float32), None
        if config.height_stride:
            steps = np.array([config.height_stride[i], config.width_stride[i]], np.float32) / sides
        if config.height_offset:
            starts = np.array([config.height_offset[i], config.width_offset[i]], np.float32) / sides
        levels.append(_tile(hw, shapes, base_hw, steps, np.float32(0.5) * steps if starts is None else starts))
    return levels


def _ssd_shapes(config: SsdAnchorGenerator) -> list[list[tuple[float, float]]]:
    """Return scale and aspect ratio of each anchor of a location, for each feature map."""
    scales = list(config.scales)
    if not scales:  # with a single map the reference divides by zero; here it gets `min_scale`
        steps = max(config.num_layers - 1, 1)
        low, high = float(np.float32(config.min_scale)), float(np.float32(config.max_scale))
        scales = [low + (high - low) * i / steps for i in range(config.num_layers)]
    shapes = []
    for i, (scale, next_scale) in enumerate(zip(scales, [*scales[1:], 1.0], strict=True)):
        if i == 0 and config.reduce_boxes_in_lowest_layer:
            shapes.append([(own or scale, ratio) for own, ratio in _LOWEST_LAYER_SHAPES])
            continue
        of_map = [(scale, ratio) for ratio in config.aspect_ratios]
        if config.interpolated_scale_aspect_ratio > 0:
            of_map.append(((scale * next_scale) ** 0.5, config.interpolated_scale_aspect_ratio))
        shapes.append(of_map)
    return shapes


def _grid_px(config: GridAnchorGenerator, hw: tuple[int, int]) -> Float32Array:
    shapes = [(scale, ratio) for ratio in config.aspect_ratios for scale in config.scales]
    strides = (config.height_stride, config.width_stride)
    offsets = (config.height_offset, config.width_offset)
    return _tile(hw, shapes, (config.height, config.width), strides, offsets)


def _relative(boxes_yxyx_px: Float32Array, image_hw: tuple[int, int]) -> Float32Array:
    return boxes_yxyx_px * np.tile(np.float32(1) / np.array(image_hw, np.float32), 2)


def _tile(
    hw: tuple[int, int],
    shapes: Sequence[tuple[float, float]],
    base_hw: Sequence[float] | Float32Array,
    steps: Sequence[float] | Float32Array,
    starts: Sequence[float] | Float32Array,
) -> Float32Array:
    """Return yxyx boxes [rows * columns * shapes, 4] of `shapes` (scale, ratio) times `base_hw` at every location."""
    scales, ratios = (np.array(column, np.float32) for column in zip(*shapes, strict=True))
    base_h, base_w, step_y, step_x, start_y, start_x = np.array([*base_hw, *steps, *starts], np.float32)
    roots = np.sqrt(ratios)
    heights, widths = scales / roots * base_h, scales * roots * base_w
    y = (np.arange(hw[0], dtype=np.float32) * step_y + start_y)[:, np.newaxis, np.newaxis]
    x = (np.arange(hw[1], dtype=np.float32) * step_x + start_x)[np.newaxis, :, np.newaxis]
    half_h, half_w = np.float32(0.5) * heights, np.float32(0.5) * widths
    sides = np.broadcast_arrays(y - half_h, x - half_w, y + half_h, x + half_w)
    return np.stack(sides, axis=-1).reshape(-1, 4)
