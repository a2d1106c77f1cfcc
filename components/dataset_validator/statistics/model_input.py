"""Compute the size of images and boxes, and their IoU with anchors, in the network's input.

The best IoU of a box with the anchors of a grid is computed without building the grid.
"""

import math
from dataclasses import dataclass

import numpy as np

from detloom.schemas.contracts.arrays import Array, Float64Array, Int64Array
from detloom.schemas.model.config import Model
from detloom.schemas.model.detector import AnchorGenerator, MultiscaleAnchorGenerator
from detloom.schemas.model.network import FixedShapeResizer, ImageResizer


@dataclass(frozen=True, kw_only=True)
class ModelInput:
    """Part of a configuration that the boxes of a data set are compared with.

    Attributes:
        anchor_generator: None if the detector has no anchors.
        max_boxes: maximum number of boxes per image in training (`train_input.max_number_of_boxes`).
    """

    image_resizer: ImageResizer
    anchor_generator: AnchorGenerator | None
    max_boxes: int = 100

    @classmethod
    def of_model(cls, model: Model, max_boxes: int) -> "ModelInput":
        """Select the input settings of a detector configuration."""
        # By the names of the settings, not by family: its code includes losses and networks.
        names = ("anchor_generator", "first_stage_anchor_generator")
        anchors = next((getattr(model, name) for name in names if hasattr(model, name)), None)
        return cls(image_resizer=model.image_resizer, anchor_generator=anchors, max_boxes=max_boxes)

    def describe(self) -> str:
        """Describe the resizer in a few words."""
        resizer = self.image_resizer
        if isinstance(resizer, FixedShapeResizer):
            return f"FixedShapeResizer, {resizer.height} x {resizer.width} px (height x width)"
        padded = ", padded to a square" if resizer.pad_to_max_dimension else ""
        return f"KeepAspectRatioResizer, {resizer.min_dimension} to {resizer.max_dimension} px{padded}"


def resize_geometry(resizer: ImageResizer, image_hw: tuple[int, int]) -> tuple[tuple[float, float], tuple[int, int]]:
    """Return the height and width of the resized image, and of the network's input, which padding can enlarge.

    KeepAspectRatioResizer follows the Object Detection API (core/preprocessor.py, `resize_to_range`): the shorter side
    becomes `min_dimension`, unless the longer side would exceed `max_dimension`; then the longer side becomes
    `max_dimension`.
    """
    if isinstance(resizer, FixedShapeResizer):
        size = (resizer.height, resizer.width)
        return size, size
    height, width = image_hw
    scale = resizer.min_dimension / min(height, width)
    if scale * max(height, width) > resizer.max_dimension:
        scale = resizer.max_dimension / max(height, width)
    resized = (max(round(height * scale), 1), max(round(width * scale), 1))
    if resizer.pad_to_max_dimension:
        return resized, (resizer.max_dimension, resizer.max_dimension)
    return resized, resized


def boxes_in_input(boxes_yxyx_rel_N4: Float64Array, resized_hw: tuple[float, float]) -> Float64Array:
    """Convert boxes to pixels of the network's input; padding is at the bottom and right and does not shift boxes."""
    height, width = resized_hw
    return boxes_yxyx_rel_N4 * np.array([height, width, height, width], np.float64)


def best_anchor_iou(generator: MultiscaleAnchorGenerator, boxes_yxyx_px_N4: Array, input_hw: Array) -> Float64Array:
    """Return the [N] IoU of each box with the best of the anchors that `build_anchors` creates.

    For two boxes of given sizes, the overlap decreases with the distance of their centres along each side. So the best
    anchor of one level and shape is the one with the nearest centre, which rounding finds.

    Args:
        boxes_yxyx_px_N4: boxes with an area, in pixels of the network's input.
        input_hw: size of the network's input including padding; [2], or [N, 2] if the images differ.
    """
    boxes = np.asarray(boxes_yxyx_px_N4, np.float64).reshape(-1, 4)
    hw_N2 = np.broadcast_to(np.asarray(input_hw, np.int64), (len(boxes), 2))
    # Separate columns, so that each operation reads contiguous memory that fits into the cache.
    ymin, xmin, ymax, xmax = (np.ascontiguousarray(boxes[:, side]) for side in range(4))
    box_h, box_w, areas = ymax - ymin, xmax - xmin, (ymax - ymin) * (xmax - xmin)
    best_N = np.zeros(len(boxes))
    for level in range(generator.min_level, generator.max_level + 1):
        stride_h, stride_w = (_strides(generator, hw_N2[:, side], level) for side in range(2))
        distance_y = _distance_to_grid((ymin + ymax) / 2, hw_N2[:, 0], stride_h)
        distance_x = _distance_to_grid((xmin + xmax) / 2, hw_N2[:, 1], stride_w)
        for shape_h, shape_w in anchor_shapes(generator):
            anchor_h, anchor_w = shape_h * stride_h, shape_w * stride_w
            shared_h = np.minimum(np.minimum(box_h, anchor_h), (box_h + anchor_h) / 2 - distance_y)
            shared_w = np.minimum(np.minimum(box_w, anchor_w), (box_w + anchor_w) / 2 - distance_x)
            shared = np.maximum(shared_h, 0) * np.maximum(shared_w, 0)
            np.maximum(best_N, shared / (areas + anchor_h * anchor_w - shared), out=best_N)
    return best_N


def _strides(generator: MultiscaleAnchorGenerator, input_sides_N: Int64Array, level: int) -> Float64Array:
    """Return the [N] distance between the anchors of a level along one side, in pixels."""
    if generator.strides_from_feature_maps:
        return input_sides_N / -(-input_sides_N // 2**level)
    return np.full(len(input_sides_N), 2.0**level)


def _distance_to_grid(centres_N: Float64Array, input_sides_N: Int64Array, strides_N: Float64Array) -> Float64Array:
    """Return the [N] distance from each centre to the nearest anchor centre along one side.

    `build_anchors` explains the position of the first anchor centre.
    """
    num_cells = np.ceil(input_sides_N / strides_N - 1e-9)  # a stride that divides the side is rounded in float64
    starts = np.where(num_cells * strides_N - input_sides_N < 1e-6, strides_N / 2, 0)
    return np.abs(centres_N - np.clip(np.rint((centres_N - starts) / strides_N), 0, num_cells - 1) * strides_N - starts)


def anchor_shapes(generator: MultiscaleAnchorGenerator) -> Float64Array:
    """Return the [S, 2] height and width, in strides, of the anchors at one location."""
    scales = generator.anchor_scale * 2 ** (np.arange(generator.scales_per_octave) / generator.scales_per_octave)
    roots = [math.sqrt(ratio) for ratio in generator.aspect_ratios]
    return np.array([(scale / root, scale * root) for root in roots for scale in scales])
