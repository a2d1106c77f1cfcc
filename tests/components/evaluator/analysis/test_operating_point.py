import numpy as np
import pytest

from detloom.components.evaluator.analysis.average_precision import Curve, measure_curve
from detloom.components.evaluator.analysis.matches import match_detections
from detloom.components.evaluator.analysis.operating_point import best_f1_point, point_of_precision


def make_curve(scores, is_true, num_truth):
    is_true = np.array(is_true, bool)
    return Curve(
        scores=np.array(scores, float),
        num_true=np.cumsum(is_true).astype(float),
        num_false=np.cumsum(~is_true).astype(float),
        num_truth=num_truth,
    )


# Four objects. Right, right, wrong, right, wrong: F1 = 2 true / (detections + 4) is 2/5, 4/6, 4/7, 6/8, 6/9.
CURVE = make_curve([0.9, 0.8, 0.7, 0.6, 0.5], [1, 1, 0, 1, 0], 4)


def test_the_best_f1_by_hand():
    point = best_f1_point(CURVE)
    assert point.min_score == 0.6
    assert point.F1 == 6 / 8
    assert (point.precision, point.recall) == (3 / 4, 3 / 4)
    assert (point.num_true, point.num_false, point.num_missed) == (3, 1, 1)


def test_of_equal_f1_the_highest_score():
    # One right of two objects: 2/3; right, wrong, wrong, right: 2/3, 2/4, 2/5, 4/6.
    assert best_f1_point(make_curve([0.9, 0.8, 0.7, 0.6], [1, 0, 0, 1], 2)).min_score == 0.9


@pytest.mark.parametrize(
    ("min_precision", "min_score"),
    [(1.0, 0.8), (0.75, 0.6), (0.6, 0.6), (0.0, 0.6)],  # behind 0.6 nothing more is found
)
def test_a_wanted_precision_by_hand(min_precision, min_score):
    assert point_of_precision(CURVE, min_precision).min_score == min_score


def test_a_precision_that_no_score_reaches():
    assert point_of_precision(make_curve([0.9, 0.8], [0, 1], 3), 0.6) is None


@pytest.mark.parametrize("curve", [make_curve([], [], 3), make_curve([0.5], [0], 3), make_curve([0.5], [0], 0)])
def test_nothing_right(curve):
    assert best_f1_point(curve) is None
    assert point_of_precision(curve, 0.5) is None


def test_equal_scores_are_let_through_together(make_image, label_map):
    truth, found = make_image(1, truth=[(1, 0, 0, 20, 20)], found=[(1, 0, 0, 20, 20, 0.5), (1, 60, 60, 90, 90, 0.5)])
    point = best_f1_point(measure_curve(match_detections([truth], [found], label_map), 0, 0))
    assert (point.num_true, point.num_false) == (1, 1)
