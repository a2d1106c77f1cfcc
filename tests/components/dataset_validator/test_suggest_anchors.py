import numpy as np
import pytest

from detloom.components.dataset_validator.anchor_grid import best_anchor_iou
from detloom.components.dataset_validator.suggest_anchors import cluster_shapes, shape_iou, suggest_anchors
from detloom.schemas.model_config import MultiscaleAnchorGenerator


def boxes_at(shapes_hw, input_side=320, seed=0):
    """Boxes of these shapes at random places."""
    shapes = np.asarray(shapes_hw, np.float64)
    corners = np.random.default_rng(seed).uniform(0, 1, shapes.shape) * (input_side - shapes)
    return np.concatenate([corners, corners + shapes], axis=1)


def test_iou_of_shapes_is_that_of_boxes_with_one_centre():
    # 2 x 8 and 4 x 4 share 2 * 4 = 8 of 16 + 16 - 8 = 24.
    assert shape_iou(np.array([[2.0, 8.0]]), np.array([[4.0, 4.0]]))[0, 0] == pytest.approx(1 / 3)


def test_clusters_of_two_kinds_of_boxes_are_the_two_in_order_of_area():
    centres, mean_iou = cluster_shapes(np.array([[40, 20]] * 7 + [[10, 10]] * 3), num_clusters=2)
    np.testing.assert_allclose(centres, [[10, 10], [40, 20]])
    assert mean_iou == pytest.approx(1.0)


def test_there_are_no_more_clusters_than_different_shapes():
    assert len(cluster_shapes(np.array([[5, 5], [5, 5]]))[0]) == 1


def test_clusters_are_the_same_each_time():
    shapes = np.random.default_rng(3).uniform(5, 200, (300, 2))
    first, second = cluster_shapes(shapes), cluster_shapes(shapes)
    np.testing.assert_array_equal(first[0], second[0])


def test_a_suggestion_for_small_boxes_has_small_anchors():
    configured = MultiscaleAnchorGenerator(aspect_ratios=(0.5, 1.0, 2.0))  # smallest side 4 * 8 = 32 px
    boxes = boxes_at([[20, 20]] * 200)
    suggestion = suggest_anchors(configured, boxes, np.full((200, 2), 320), 0.5)
    assert suggestion.configured_fit.recall == 0.0  # 400 / 32**2 at best
    assert suggestion.fit.recall > 0.9
    assert suggestion.generator.anchor_scale < 3


def test_a_suggestion_has_no_more_anchors_at_a_place_and_the_same_levels():
    configured = MultiscaleAnchorGenerator(aspect_ratios=(0.5, 1.0), scales_per_octave=2, min_level=4, max_level=6)
    shapes = np.random.default_rng(5).uniform(8, 150, (300, 2))
    generator = suggest_anchors(configured, boxes_at(shapes), np.full((300, 2), 320), 0.5).generator
    assert len(generator.aspect_ratios) * generator.scales_per_octave <= 4
    assert (generator.min_level, generator.max_level) == (4, 6)


@pytest.mark.parametrize("seed", range(5))
def test_a_suggestion_is_never_worse_than_what_is_configured(seed):
    configured = MultiscaleAnchorGenerator(aspect_ratios=(0.5, 1.0, 2.0))
    rng = np.random.default_rng(seed)
    boxes = boxes_at(np.exp(rng.normal(3.5, 0.8, (1500, 2))).clip(2, 300), seed=seed)
    hw = np.full((1500, 2), 320)
    suggestion = suggest_anchors(configured, boxes, hw, 0.5)
    ious = best_anchor_iou(suggestion.generator, boxes, hw)
    assert suggestion.fit.mean_iou == pytest.approx(ious.mean())
    assert suggestion.fit.recall >= suggestion.configured_fit.recall
    assert suggestion.fit.mean_iou >= suggestion.configured_fit.mean_iou
