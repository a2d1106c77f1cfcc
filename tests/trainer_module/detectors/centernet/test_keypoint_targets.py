"""The values were worked out by hand; the parity tests compare with the reference."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.model.center_net import KeypointEstimation
from detloom.trainer_module.detectors.centernet.keypoint_losses import count_keypoints
from detloom.trainer_module.detectors.centernet.keypoint_targets import KeypointTargets, assign_keypoint_targets

NOWHERE = (np.nan, np.nan)
BOXES = [[1, 1, 5, 5], [6, 6, 8, 8], [0, 0, 0, 0]]  # of a cat, of another class, padding; in cells of 8 x 8
CLASSES = [1, 0, -1]


def assign(
    task: KeypointEstimation, ear: tuple[float, float], weights: tuple[float, ...] = (1.0, 1.0, 0.0), radius: int = 1
) -> KeypointTargets:
    """Assign the ear of the cat, in cells; its tail has no label."""
    points = [[ear, NOWHERE], [NOWHERE, NOWHERE], [NOWHERE, NOWHERE]]
    return assign_keypoint_targets(
        dataclasses.replace(task, offset_peak_radius=radius),
        tf.constant([BOXES], tf.float32) / 8,
        tf.constant([CLASSES]),
        tf.constant([points], tf.float32) / 8,
        tf.constant([weights]),
        map_hw=(8, 8),
        class_index=1,
    )


def test_the_heatmap_is_1_at_the_cell_of_a_keypoint_only(keypoint_task):
    heatmap = assign(keypoint_task, (2.5, 3.25)).heatmap_BHWP.numpy()
    assert np.argwhere(heatmap == 1).tolist() == [[0, 2, 3, 0]]
    assert not heatmap[..., 1].any()


def test_the_gaussian_has_the_deviation_of_box_and_keypoint(keypoint_task):
    # 4 x 4 cells at IoU 0.7: (-11.2 + sqrt(125.44 + 53.76)) / 2 = 1.09, whose floor gives (2 * 1 + 1) / 6 = 0.5 cells;
    # times 3, the ear's factor, 1.5. One cell beside the peak: exp(-1 / (2 * 2.25)).
    heatmap = assign(keypoint_task, (2.5, 3.25)).heatmap_BHWP.numpy()
    assert heatmap[0, 2, 4, 0] == pytest.approx(np.exp(-2 / 9))


def test_a_weight_multiplies_the_gaussian_and_the_losses(keypoint_task):
    targets = assign(keypoint_task, (2.5, 3.25), weights=(0.5, 1.0, 0.0))
    assert targets.heatmap_BHWP.numpy().max() == pytest.approx(0.5)
    # The heat map's normalizer rounds down; 5 cells around the ear, and around the centre.
    assert count_keypoints(targets).numpy().tolist() == [0, 2.5, 2.5]


def test_boxes_hide_the_keypoints_that_are_not_labelled_in_them(keypoint_task):
    is_trained = assign(keypoint_task, (2.5, 3.25)).is_trained_BHWP.numpy()[0]
    wanted = np.ones([8, 8, 2])
    wanted[6:8, 6:8] = 0  # another class has no labels at all
    wanted[1:5, 1:5, 1] = 0
    np.testing.assert_array_equal(is_trained, wanted)


def test_offsets_point_from_the_cells_around_a_keypoint_to_it(keypoint_task):
    cells = assign(keypoint_task, (2.5, 3.25)).around_points
    assert cells.cell_BGPR[0, 0, 0].numpy().tolist() == [1 * 8 + 3, 2 * 8 + 2, 2 * 8 + 3, 2 * 8 + 4, 3 * 8 + 3]
    wanted = [[1.5, 0.25], [0.5, 1.25], [0.5, 0.25], [0.5, -0.75], [-0.5, 0.25]]
    assert cells.to_point_BGPR2[0, 0, 0].numpy().tolist() == wanted
    assert cells.weight_BGPR.numpy().sum() == 5


def test_the_regression_points_from_the_cells_around_the_centre(keypoint_task):
    cells = assign(keypoint_task, (2.5, 3.25), radius=0).around_centers
    assert cells.cell_BGPR[0, 0, 0].numpy().tolist() == [3 * 8 + 3]
    assert cells.to_point_BGPR2[0, 0, 0].numpy().tolist() == [[-0.5, 0.25]]


def test_cells_outside_the_map_have_no_weight(keypoint_task):
    weight = assign(keypoint_task, (0.5, 0.5)).around_points.weight_BGPR[0, 0, 0]
    assert weight.numpy().tolist() == [0, 0, 1, 1, 1]  # above, left, itself, right, below


def test_without_boxes_nothing_is_trained_but_the_empty_heatmap(keypoint_task):
    targets = assign_keypoint_targets(
        keypoint_task,
        tf.zeros([1, 0, 4]),
        tf.zeros([1, 0], tf.int32),
        tf.zeros([1, 0, 2, 2]),
        map_hw=(8, 8),
        class_index=0,
    )
    assert not targets.heatmap_BHWP.numpy().any()
    assert targets.is_trained_BHWP.numpy().all()
    assert count_keypoints(targets).numpy().tolist() == [0, 0, 0]
