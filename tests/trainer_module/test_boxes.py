import numpy as np
import pytest
import tensorflow as tf

from detloom.trainer_module import boxes


def random_boxes(count: int, seed: int = 0) -> np.ndarray:
    corners = np.random.default_rng(seed).uniform(0, 1, (count, 2, 2)).astype(np.float32)
    return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=-1)


def test_corners_to_centre_and_size_by_hand():
    # (0.1, 0.2) to (0.5, 0.8): centre ((0.1 + 0.5) / 2, (0.2 + 0.8) / 2), size (0.4, 0.6)
    np.testing.assert_allclose(
        boxes.yxyx_to_cyxhw(tf.constant([[0.1, 0.2, 0.5, 0.8]])), [[0.3, 0.5, 0.4, 0.6]], atol=1e-7
    )


def test_iou_by_hand():
    # unit squares shifted by half a side: intersection 0.5, union 1.5
    iou = boxes.pairwise_iou(
        tf.constant([[0.0, 0.0, 1.0, 1.0]]), tf.constant([[0.0, 0.5, 1.0, 1.5], [2.0, 2.0, 3.0, 3.0]])
    )
    np.testing.assert_allclose(iou, [[1 / 3, 0.0]], atol=1e-7)


@pytest.mark.parametrize("count", [0, 1, 50])
def test_laws_hold_for_no_box_one_box_and_a_crowd(count):
    first, second = tf.constant(random_boxes(count)), tf.constant(random_boxes(7, seed=1))
    iou = tf.function(boxes.pairwise_iou)(first, second)
    assert iou.shape == (count, 7)
    np.testing.assert_allclose(iou, tf.transpose(boxes.pairwise_iou(second, first)), atol=1e-6)
    np.testing.assert_allclose(tf.linalg.diag_part(boxes.pairwise_iou(first, first)), np.ones(count), atol=1e-6)
    np.testing.assert_allclose(boxes.cyxhw_to_yxyx(boxes.yxyx_to_cyxhw(first)), first, atol=1e-6)


def test_boxes_without_area_have_no_iou():
    point = tf.constant([[0.5, 0.5, 0.5, 0.5]])
    np.testing.assert_array_equal(boxes.pairwise_iou(point, point), [[0.0]])


def test_an_inverted_box_has_no_area():
    np.testing.assert_array_equal(boxes.area(tf.constant([[0.9, 0.1, 0.1, 0.5]])), [0.0])
