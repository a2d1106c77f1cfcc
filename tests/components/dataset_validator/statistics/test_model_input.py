"""Sizes of images and boxes in the network's input, and the best IoU with a grid of anchors."""

from dataclasses import replace

import numpy as np
import pytest

from detloom.components.dataset_validator.statistics.model_input import (
    ModelInput,
    anchor_shapes,
    best_anchor_iou,
    boxes_in_input,
    resize_geometry,
)
from detloom.schemas.model.detector import MultiscaleAnchorGenerator
from detloom.schemas.model.network import FixedShapeResizer, KeepAspectRatioResizer
from detloom.schemas.presets.presets import find_preset
from detloom.schemas.reading.typed_dict import from_json, to_canonical_json
from detloom.trainer_module.boxes.anchors import build_anchors, feature_hw

GENERATOR = MultiscaleAnchorGenerator(aspect_ratios=(0.5, 1.0, 2.0))


RANGE = KeepAspectRatioResizer(min_dimension=600, max_dimension=1024)


@pytest.mark.parametrize(
    ("resizer", "image_hw", "resized_hw", "input_hw"),
    [
        (FixedShapeResizer(height=300, width=200), (10, 1000), (300, 200), (300, 200)),
        (RANGE, (300, 400), (600, 800), (600, 800)),  # times 2: the shorter side becomes 600
        (RANGE, (1200, 900), (800, 600), (800, 600)),
        (RANGE, (100, 1000), (102, 1024), (102, 1024)),  # a factor of 6 would give 6000, so the factor is 1.024
        (RANGE, (1, 5000), (1, 1024), (1, 1024)),  # 0.2 px high, but never 0
        (replace(RANGE, pad_to_max_dimension=True), (300, 400), (600, 800), (1024, 1024)),
    ],
)
def test_images_are_resized_as_in_training(resizer, image_hw, resized_hw, input_hw):
    assert resize_geometry(resizer, image_hw) == (resized_hw, input_hw)


def test_boxes_are_scaled_to_the_resized_image():
    boxes = boxes_in_input(np.array([[0.5, 0.25, 1, 1]]), (600, 800))
    assert boxes.tolist() == [[300, 200, 600, 800]]


def test_the_resizer_is_described_in_a_few_words():
    def describe(resizer):
        anchors = MultiscaleAnchorGenerator(aspect_ratios=(1.0,))
        return ModelInput(image_resizer=resizer, anchor_generator=anchors).describe()

    assert describe(FixedShapeResizer(height=320, width=640)) == "FixedShapeResizer, 320 x 640 px (height x width)"
    padded = KeepAspectRatioResizer(min_dimension=512, max_dimension=512, pad_to_max_dimension=True)
    assert describe(padded) == "KeepAspectRatioResizer, 512 to 512 px, padded to a square"


def test_the_anchors_of_two_stages_are_those_of_the_first():
    model = find_preset("faster_rcnn_resnet50_v1_fpn_640x640").config.model
    assert ModelInput.of_model(model, 100).anchor_generator == model.first_stage_anchor_generator


def test_a_detector_without_anchors_has_no_anchor_generator():
    config = find_preset("centernet_resnet101_v1_fpn_512x512").config
    found = ModelInput.of_model(config.model, max_boxes=7)
    assert found.anchor_generator is None
    assert from_json(ModelInput, to_canonical_json(found)) == found


def random_boxes_px(input_hw, num_boxes, seed):
    rng = np.random.default_rng(seed)
    corners = np.sort(rng.uniform(0, 1, (num_boxes, 2, 2)), axis=1) * input_hw
    sizes = np.maximum(corners[:, 1] - corners[:, 0], 1)
    return np.concatenate([corners[:, 0], corners[:, 0] + sizes], axis=1)


def brute_force(generator, boxes_yxyx_px, input_hw):
    """Compare every box with every anchor of training."""
    hws = [feature_hw(input_hw, level) for level in range(generator.min_level, generator.max_level + 1)]
    anchors = build_anchors(generator, input_hw, hws).astype(np.float64) * [*input_hw, *input_hw]
    top_left = np.maximum(boxes_yxyx_px[:, np.newaxis, :2], anchors[np.newaxis, :, :2])
    bottom_right = np.minimum(boxes_yxyx_px[:, np.newaxis, 2:], anchors[np.newaxis, :, 2:])
    shared = np.maximum(bottom_right - top_left, 0).prod(axis=2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(axis=1) for boxes in (boxes_yxyx_px, anchors)]
    return (shared / (areas[0][:, np.newaxis] + areas[1] - shared)).max(axis=1)


@pytest.mark.parametrize("input_hw", [(128, 128), (96, 160), (100, 75)])  # no stride divides the last sides
@pytest.mark.parametrize(
    "generator",
    [
        GENERATOR,
        MultiscaleAnchorGenerator(aspect_ratios=(1.3,), min_level=2, max_level=4, anchor_scale=1.5),
        MultiscaleAnchorGenerator(aspect_ratios=(1.3,), anchor_scale=1.5, strides_from_feature_maps=True),
    ],
)
def test_the_best_iou_matches_a_search_over_all_anchors(generator, input_hw):
    boxes = random_boxes_px(input_hw, 300, seed=1)
    found = best_anchor_iou(generator, boxes, np.array(input_hw))
    np.testing.assert_allclose(found, brute_force(generator, boxes, input_hw), atol=2e-6)  # anchors are float32


def test_images_of_different_sizes_can_be_measured_together():
    sizes = [(128, 128), (100, 75)]
    boxes = [random_boxes_px(hw, 5, seed) for seed, hw in enumerate(sizes)]
    together = best_anchor_iou(GENERATOR, np.concatenate(boxes), np.repeat(sizes, 5, axis=0))
    apart = [best_anchor_iou(GENERATOR, part, np.array(hw)) for part, hw in zip(boxes, sizes, strict=True)]
    np.testing.assert_array_equal(together, np.concatenate(apart))


def test_iou_with_anchors_matches_values_by_hand():
    # One level, one shape: 32 x 32 at stride 8, centres at 4, 12, 20, ... Moved by 4 px: 28 * 32 of 36 * 32.
    one = MultiscaleAnchorGenerator(aspect_ratios=(1.0,), min_level=3, max_level=3, scales_per_octave=1)
    found = best_anchor_iou(one, np.array([[4, 12, 36, 44], [4, 16, 36, 48]]), np.array([64, 64]))
    assert found.tolist() == [1.0, pytest.approx(28 / 36)]
    assert best_anchor_iou(GENERATOR, np.zeros((0, 4)), np.array([64, 64])).shape == (0,)


def test_anchor_shapes_are_in_strides_and_keep_their_area():
    # Ratio 4 = width / height: height / 2, width * 2.
    shapes = anchor_shapes(MultiscaleAnchorGenerator(aspect_ratios=(1.0, 4.0), scales_per_octave=1))
    np.testing.assert_allclose(shapes, [[4, 4], [2, 8]])
