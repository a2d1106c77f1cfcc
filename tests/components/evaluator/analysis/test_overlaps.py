import numpy as np
import pytest
from pycocotools import mask

from detloom.components.evaluator.analysis.overlaps import pairwise_iou


def test_a_shifted_square():
    # 10 x 10 against 10 x 10 shifted by 5: 50 shared, 150 together.
    iou = pairwise_iou(np.array([[0, 0, 10, 10]]), np.array([[5, 0, 10, 10], [10, 0, 10, 10]]))
    np.testing.assert_array_equal(iou, [[50 / 150, 0]])


def test_of_a_crowd_only_the_first_box_counts():
    iou = pairwise_iou(np.array([[0, 0, 10, 10]]), np.array([[5, 0, 100, 100]]), np.array([True]))
    assert iou == 0.5


@pytest.mark.parametrize("is_crowd", [False, True])
def test_equal_to_pycocotools_to_the_last_digit(is_crowd):
    generator = np.random.default_rng(0)
    first, second = generator.random((50, 4)) * 100, generator.random((40, 4)) * 100
    crowd = np.full(40, is_crowd)
    expected = mask.iou(first, second, crowd.astype(np.uint8))
    np.testing.assert_array_equal(pairwise_iou(first, second, crowd), expected)


def test_no_boxes():
    assert pairwise_iou(np.zeros((0, 4)), np.zeros((3, 4))).shape == (0, 3)
    assert pairwise_iou(np.zeros((1, 4)), np.zeros((1, 4))) == 0  # without area nothing overlaps
