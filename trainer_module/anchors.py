"""Anchors: the boxes that the network's outputs are relative to."""

import numpy as np

from detloom.schemas.model_config import AnchorGenerator, MultiscaleAnchorGenerator


def feature_hw(image_hw: tuple[int, int], level: int) -> tuple[int, int]:
    """Size of pyramid level `level`: each stride-2 convolution with 'same' padding rounds up."""
    return -(-image_hw[0] // 2**level), -(-image_hw[1] // 2**level)


def build_anchors(config: AnchorGenerator, image_hw: tuple[int, int]) -> np.ndarray:
    """Anchors of all levels, float32 [A, 4] yxyx relative to the image, not clipped to it.

    Order: level from fine to coarse, row, column, aspect ratio, scale: that of the Object Detection API's
    `MultiscaleGridAnchorGenerator`, so that its heads read out the same. As there, the grid starts half a stride in,
    or at 0 along a side that the stride does not divide.
    """
    assert isinstance(config, MultiscaleAnchorGenerator), config
    height, width = image_hw
    scales = np.array([2 ** (i / config.scales_per_octave) for i in range(config.scales_per_octave)])
    ratio_roots = np.sqrt(np.array(config.aspect_ratios))
    heights = (scales[np.newaxis, :] / ratio_roots[:, np.newaxis]).ravel()
    widths = (scales[np.newaxis, :] * ratio_roots[:, np.newaxis]).ravel()
    boxes_yxyx_px = []
    for level in range(config.min_level, config.max_level + 1):
        stride = 2**level
        rows, columns = feature_hw(image_hw, level)
        y = np.arange(rows) * stride + (stride / 2 if height % stride == 0 else 0)
        x = np.arange(columns) * stride + (stride / 2 if width % stride == 0 else 0)
        half_h, half_w = (config.anchor_scale * stride * side / 2 for side in (heights, widths))
        y, x = y[:, np.newaxis, np.newaxis], x[np.newaxis, :, np.newaxis]
        sides = np.broadcast_arrays(y - half_h, x - half_w, y + half_h, x + half_w)
        boxes_yxyx_px.append(np.stack(sides, axis=-1).reshape(-1, 4))
    return (np.concatenate(boxes_yxyx_px) / [height, width, height, width]).astype(np.float32)


def num_anchors_per_location(config: AnchorGenerator) -> tuple[int, ...]:
    """One number a level."""
    assert isinstance(config, MultiscaleAnchorGenerator), config
    count = len(config.aspect_ratios) * config.scales_per_octave
    return (count,) * (config.max_level - config.min_level + 1)
