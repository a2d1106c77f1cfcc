from dataclasses import replace

import numpy as np
import pytest

from detloom.components.evaluator.analysis.average_precision import (
    RECALLS,
    ClassSampler,
    _count_reached,
    measure_curve,
    precision_at_recalls,
)
from detloom.components.evaluator.analysis.matches import match_detections
from detloom.trainer_module.coco_metrics import NO_VALUE, compute_coco_metrics


@pytest.mark.parametrize("seed", range(40))
def test_equal_to_pycocotools(seed, make_split, label_map):
    truth, found = make_split(seed)
    expected = compute_coco_metrics(truth, found, label_map, backend="pycocotools")
    matches = match_detections(truth, found, label_map)
    ones = np.ones((1, len(truth)))
    for k, row in enumerate(expected.per_class):
        AP_T = ClassSampler(matches, k).average_precision(ones)[0]
        if row.AP == NO_VALUE:
            assert np.isnan(AP_T).all()
        else:
            np.testing.assert_allclose([AP_T.mean(), AP_T[0]], [row.AP, row.AP50], rtol=0, atol=1e-12)


def test_an_image_of_weight_two_stands_there_twice(make_split, label_map):
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
        # Detections of one score stand in the order of the images: those of an image drawn twice move together.
        np.testing.assert_allclose(weighted, plain, atol=0.05)


def _renamed(image, number):
    return replace(image, image_id=number)


def test_a_curve_by_hand(make_image, label_map):
    # Two cats. By score: right, wrong, right and wrong of one score.
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
    # The detection that found the second cat stands before the wrong one of its score: 2 of 3.
    precision_R = precision_at_recalls(matches, 0, 0)
    np.testing.assert_allclose(precision_R[:51], 1, rtol=1e-12)
    np.testing.assert_allclose(precision_R[51:], 2 / 3, rtol=1e-12)


def test_every_recall_is_counted_as_the_search_does():
    recalls = np.unique([number / total for total in range(1, 400) for number in range(total + 1)])
    np.testing.assert_array_equal(_count_reached(recalls), np.searchsorted(RECALLS, recalls, side="right"))


def test_without_objects_there_is_no_curve(make_image, label_map):
    truth, found = make_image(1, found=[(1, 0, 0, 20, 20, 0.9)])
    matches = match_detections([truth], [found], label_map)
    assert np.isnan(precision_at_recalls(matches, 0, 0)).all()
    assert measure_curve(matches, 0, 0).num_truth == 0


def test_without_detections_precision_is_nowhere(make_image, label_map):
    truth, found = make_image(1, truth=[(1, 0, 0, 20, 20)])
    matches = match_detections([truth], [found], label_map)
    assert not precision_at_recalls(matches, 0, 0).any()
    assert len(measure_curve(matches, 0, 0).scores) == 0
