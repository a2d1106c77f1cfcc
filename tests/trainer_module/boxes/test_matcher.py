import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.model.detector import ArgMaxMatcher
from detloom.trainer_module.boxes.matcher import match_anchors

FORCED = ArgMaxMatcher(force_match_for_each_row=True)
BETWEEN = {"matched_threshold": 0.5, "unmatched_threshold": 0.4}


def match_batch(matcher: ArgMaxMatcher, iou_BGA, is_box_BG, is_forced_BG):
    return match_anchors(matcher, lambda g: iou_BGA[:, g], is_box_BG, is_forced_BG, iou_BGA.shape[2])


def match(iou_GA, matcher: ArgMaxMatcher | None = None, is_box=None, is_forced=None):
    iou_BGA = tf.constant([iou_GA], tf.float32)
    is_box_BG = tf.constant([is_box or [True] * len(iou_GA)])
    is_forced_BG = tf.constant([is_forced or [True] * len(iou_GA)]) & is_box_BG
    return tf.function(match_batch)(matcher or ArgMaxMatcher(), iou_BGA, is_box_BG, is_forced_BG)[0].numpy().tolist()


def test_an_anchor_takes_the_box_it_overlaps_most():
    assert match([[0.6, 0.7, 0.0], [0.8, 0.5, 0.1]]) == [1, 0, -1]


def test_an_anchor_between_the_thresholds_is_ignored():
    assert match([[0.6, 0.45, 0.3]], ArgMaxMatcher(**BETWEEN)) == [0, -2, -1]


def test_the_lowest_anchors_are_ignored_if_negatives_are_in_between():
    matcher = ArgMaxMatcher(**BETWEEN, negatives_lower_than_unmatched=False)
    assert match([[0.6, 0.45, 0.3]], matcher) == [0, -1, -2]


def test_without_thresholds_every_anchor_takes_a_box():
    assert match([[0.6, 0.1, 0.0], [0.0, 0.2, 0.0]], ArgMaxMatcher(ignore_thresholds=True)) == [0, 1, 0]


def test_every_box_gets_its_best_anchor_when_forced():
    assert match([[0.1, 0.2], [0.9, 0.0]], FORCED) == [1, 0]


def test_the_first_of_two_boxes_with_the_same_best_anchor_gets_it():
    assert match([[0.3, 0.1], [0.4, 0.2], [0.2, 0.0]], FORCED) == [0, -1]  # as the reference, run on this


def test_equal_overlaps_match_the_first_box_and_the_first_anchor():
    assert match([[0.6, 0.6, 0.2], [0.6, 0.6, 0.2]]) == [0, 0, -1]
    assert match([[0.2, 0.2], [0.3, 0.3]], FORCED) == [0, -1]  # both boxes want anchor 0


def test_a_box_that_overlaps_nothing_is_forced_on_the_first_anchor():
    assert match([[0.0, 0.0, 0.0]], FORCED) == [0, -1, -1]  # as the reference


def test_a_box_that_is_not_forced_takes_only_what_it_overlaps():
    assert match([[0.2, 0.0], [0.0, 0.6]], FORCED, is_forced=[False, True]) == [-1, 1]


def test_there_may_be_more_boxes_than_anchors():
    assert match([[0.1], [0.7], [0.6]]) == [1]
    assert match([[0.1], [0.7], [0.6]], FORCED) == [0]


def test_padding_may_precede_a_box():
    assert match([[0.9, 0.9], [0.6, 0.1]], is_box=[False, True]) == [1, -1]


def test_padding_rows_match_nothing():
    assert match([[0.9, 0.2], [0.95, 0.9]], FORCED, is_box=[True, False]) == [0, -1]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"force_match_for_each_row": True},
        {"ignore_thresholds": True},
        {**BETWEEN, "negatives_lower_than_unmatched": False},
    ],
)
def test_without_boxes_every_anchor_is_background(settings):
    iou = tf.zeros([2, 3, 5])
    none = tf.zeros([2, 3], tf.bool)
    matched = match_batch(ArgMaxMatcher(**settings), iou, none, none)
    np.testing.assert_array_equal(matched, np.full([2, 5], -1))
