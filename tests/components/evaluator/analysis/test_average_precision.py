from dataclasses import replace

import numpy as np
import pytest
from pycocotools_reference import reference_metrics

from detloom.components.evaluator.analysis.average_precision import (
    RECALLS,
    ClassSampler,
    Curve,
    _count_reached,
    best_f1_point,
    measure_curve,
    measure_pooled_curve,
    point_of_precision,
)
from detloom.trainer_module.evaluation.box_curves import precision_at_recalls
from detloom.trainer_module.evaluation.coco_metrics import NO_VALUE
from detloom.trainer_module.evaluation.matches import match_detections


@pytest.mark.parametrize("seed", range(12))
def test_average_precision_equals_pycocotools(seed, make_split, label_map):
    truth, found = make_split(seed)
    expected = reference_metrics(truth, found, label_map)
    matches = match_detections(truth, found, label_map)
    ones = np.ones((1, len(truth)))
    for k, row in enumerate(expected.per_class):
        AP_T = ClassSampler(matches, k).average_precision(ones)[0]
        if row.AP == NO_VALUE:
            assert np.isnan(AP_T).all()
        else:
            np.testing.assert_allclose([AP_T.mean(), AP_T[0]], [row.AP, row.AP50], rtol=0, atol=1e-12)


def test_an_image_of_weight_two_counts_twice(make_split, label_map):
    truth, found = make_split(5, num_images=6)
    weights = np.array([[2, 0, 1, 3, 0, 1]], float)
    matches = match_detections(truth, found, label_map)
    rows = np.repeat(np.arange(6), weights[0].astype(int))
    twice = match_detections(
        [_renamed(truth[i], number) for number, i in enumerate(rows)],
        [_renamed(found[i], number) for number, i in enumerate(rows)],
        label_map,
    )
    for k in range(3):
        weighted = ClassSampler(matches, k).average_precision(weights)
        plain = ClassSampler(twice, k).average_precision(np.ones((1, len(rows))))
        # Tied detections are in the order of the images, so those of an image drawn twice move together.
        np.testing.assert_allclose(weighted, plain, atol=0.05)


def _renamed(image, number):
    return replace(image, image_id=number)


def test_a_curve_matches_values_by_hand(make_image, label_map):
    # Two cats. By score: true, false, then a true and a false positive with the same score.
    truth, found = make_image(
        1,
        truth=[(1, 0, 0, 20, 20), (1, 40, 40, 80, 80)],
        found=[
            (1, 0, 0, 20, 20, 0.9),
            (1, 0, 60, 20, 80, 0.8),
            (1, 40, 40, 80, 80, 0.7),
            (1, 80, 0, 99, 20, 0.7),
        ],
    )
    matches = match_detections([truth], [found], label_map)
    curve = measure_curve(matches, 0, 0)
    assert curve.scores.tolist() == [0.9, 0.8, 0.7]
    assert curve.precision.tolist() == [1, 1 / 2, 2 / 4]
    assert curve.recall.tolist() == [1 / 2, 1 / 2, 1]
    assert (curve.num_true.tolist(), curve.num_false.tolist()) == ([1, 1, 2], [0, 1, 2])  # ties share a point
    # The true positive for the second cat comes before the false positive with the same score: 2 of 3.
    precision_R = precision_at_recalls(matches, 0, 0)
    np.testing.assert_allclose(precision_R[:51], 1, rtol=1e-12)
    np.testing.assert_allclose(precision_R[51:], 2 / 3, rtol=1e-12)


def test_reached_recalls_match_a_binary_search():
    recalls = np.unique([number / total for total in range(1, 400) for number in range(total + 1)])
    np.testing.assert_array_equal(_count_reached(recalls), np.searchsorted(RECALLS, recalls, side="right"))


def test_without_objects_precision_is_nan_and_without_detections_zero(make_image, label_map):
    box = (1, 0, 0, 20, 20)
    without_truth, without_found = (
        match_detections([truth], [found], label_map)
        for truth, found in (make_image(1, found=[(*box, 0.9)]), make_image(1, truth=[box]))
    )
    assert np.isnan(precision_at_recalls(without_truth, 0, 0)).all()
    assert measure_curve(without_truth, 0, 0).num_truth == 0
    assert not precision_at_recalls(without_found, 0, 0).any()
    assert len(measure_curve(without_found, 0, 0).scores) == 0


def make_curve(scores, is_true, num_truth):
    is_true = np.array(is_true, bool)
    return Curve(
        scores=np.array(scores, float),
        num_true=np.cumsum(is_true).astype(float),
        num_false=np.cumsum(~is_true).astype(float),
        num_truth=num_truth,
    )


# Four objects. True, true, false, true, false: F1 = 2 true / (detections + 4) is 2/5, 4/6, 4/7, 6/8, 6/9.
CURVE = make_curve([0.9, 0.8, 0.7, 0.6, 0.5], [1, 1, 0, 1, 0], 4)


def test_the_best_f1_matches_values_by_hand():
    point = best_f1_point(CURVE)
    assert point.min_score == 0.6
    assert point.F1 == 6 / 8
    assert (point.precision, point.recall) == (3 / 4, 3 / 4)
    assert (point.num_true, point.num_false, point.num_missed) == (3, 1, 1)
    # Two objects; true, false, false, true: F1 is 2/3, 2/4, 2/5, 4/6. Of equal ones, the highest score is chosen.
    assert best_f1_point(make_curve([0.9, 0.8, 0.7, 0.6], [1, 0, 0, 1], 2)).min_score == 0.9


def test_curve_of_all_classes_together_matches_values_by_hand(make_image, label_map):
    cat, dog = (1, 0, 0, 20, 20), (2, 60, 60, 90, 90)
    # By score: a cat found, a cat on the dog (false), the dog found; the second dog is missed.
    # F1 = 2 true / (detections + 3): 2/4, 2/5, 4/6.
    truth, found = make_image(
        1,
        truth=[cat, dog, (2, 0, 60, 20, 90)],
        found=[(*cat, 0.9), (1, 60, 60, 90, 90, 0.7), (*dog, 0.4)],
    )
    curve = measure_pooled_curve(match_detections([truth], [found], label_map), 0)
    assert (curve.scores.tolist(), curve.num_truth) == ([0.9, 0.7, 0.4], 3)
    assert (curve.num_true.tolist(), curve.num_false.tolist()) == ([1, 1, 2], [0, 1, 1])
    assert best_f1_point(curve).min_score == 0.4


@pytest.mark.parametrize(
    ("min_precision", "min_score"),
    [(1.0, 0.8), (0.75, 0.6), (0.6, 0.6), (0.0, 0.6)],  # below 0.6 recall does not rise
)
def test_a_wanted_precision_matches_values_by_hand(min_precision, min_score):
    assert point_of_precision(CURVE, min_precision).min_score == min_score


def test_a_precision_that_no_score_reaches_has_no_point():
    assert point_of_precision(make_curve([0.9, 0.8], [0, 1], 3), 0.6) is None


@pytest.mark.parametrize("curve", [make_curve([], [], 3), make_curve([0.5], [0], 3), make_curve([0.5], [0], 0)])
def test_without_true_positives_there_is_no_point(curve):
    assert best_f1_point(curve) is None
    assert point_of_precision(curve, 0.5) is None
