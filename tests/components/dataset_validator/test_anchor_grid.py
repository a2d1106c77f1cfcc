import numpy as np
import pytest

from detloom.components.dataset_validator.anchor_grid import anchor_shapes, best_anchor_iou
from detloom.schemas.model_config import MultiscaleAnchorGenerator
from detloom.trainer_module.anchors import build_anchors, feature_hw

GENERATOR = MultiscaleAnchorGenerator(aspect_ratios=(0.5, 1.0, 2.0))


def random_boxes_px(input_hw, num_boxes, seed):
    rng = np.random.default_rng(seed)
    corners = np.sort(rng.uniform(0, 1, (num_boxes, 2, 2)), axis=1) * input_hw
    sizes = np.maximum(corners[:, 1] - corners[:, 0], 1)
    return np.concatenate([corners[:, 0], corners[:, 0] + sizes], axis=1)


def brute_force(generator, boxes_yxyx_px, input_hw):
    """Every box with every anchor that training has."""
    hws = [feature_hw(input_hw, level) for level in range(generator.min_level, generator.max_level + 1)]
    anchors = build_anchors(generator, input_hw, hws).astype(np.float64) * [*input_hw, *input_hw]
    top_left = np.maximum(boxes_yxyx_px[:, np.newaxis, :2], anchors[np.newaxis, :, :2])
    bottom_right = np.minimum(boxes_yxyx_px[:, np.newaxis, 2:], anchors[np.newaxis, :, 2:])
    shared = np.maximum(bottom_right - top_left, 0).prod(axis=2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(axis=1) for boxes in (boxes_yxyx_px, anchors)]
    return (shared / (areas[0][:, np.newaxis] + areas[1] - shared)).max(axis=1)


@pytest.mark.parametrize("input_hw", [(128, 128), (96, 160), (100, 75)])  # the last: sides that no stride divides
@pytest.mark.parametrize(
    "generator",
    [GENERATOR, MultiscaleAnchorGenerator(aspect_ratios=(1.3,), min_level=2, max_level=4, anchor_scale=1.5)],
)
def test_the_best_iou_is_that_of_a_search_through_all_anchors(generator, input_hw):
    boxes = random_boxes_px(input_hw, 300, seed=1)
    found = best_anchor_iou(generator, boxes, np.array(input_hw))
    np.testing.assert_allclose(found, brute_force(generator, boxes, input_hw), atol=2e-6)  # anchors are float32


def test_boxes_of_pictures_of_different_sizes_are_measured_together():
    sizes = [(128, 128), (100, 75)]
    boxes = [random_boxes_px(hw, 5, seed) for seed, hw in enumerate(sizes)]
    together = best_anchor_iou(GENERATOR, np.concatenate(boxes), np.repeat(sizes, 5, axis=0))
    apart = [best_anchor_iou(GENERATOR, part, np.array(hw)) for part, hw in zip(boxes, sizes, strict=True)]
    np.testing.assert_array_equal(together, np.concatenate(apart))


def test_a_box_that_is_an_anchor_has_iou_1():
    # Level 3 of a 64 x 64 input: stride 8, centres at 4, 12, 20, ...; a square anchor has sides of 4 * 8 = 32.
    assert best_anchor_iou(GENERATOR, np.array([[4, 12, 36, 44]]), np.array([64, 64]))[0] == 1.0


def test_a_box_half_a_stride_off_loses_what_sticks_out():
    # One level, one shape: 32 x 32 at stride 8. Moved by 4 px: 28 * 32 shared, 36 * 32 in all: 28 / 36.
    one = MultiscaleAnchorGenerator(aspect_ratios=(1.0,), min_level=3, max_level=3, scales_per_octave=1)
    assert best_anchor_iou(one, np.array([[4, 16, 36, 48]]), np.array([64, 64]))[0] == pytest.approx(28 / 36)


def test_no_boxes_have_no_ious():
    assert best_anchor_iou(GENERATOR, np.zeros((0, 4)), np.array([64, 64])).shape == (0,)


def test_shapes_are_in_strides_and_keep_their_area_whatever_the_ratio():
    # Ratio 4 = width / height: height / 2, width * 2.
    shapes = anchor_shapes(MultiscaleAnchorGenerator(aspect_ratios=(1.0, 4.0), scales_per_octave=1))
    np.testing.assert_allclose(shapes, [[4, 4], [2, 8]])
