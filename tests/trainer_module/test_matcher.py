import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.model_config import ArgMaxMatcher
from detloom.trainer_module.matcher import match_anchors

FORCED = ArgMaxMatcher(force_match_for_each_row=True)
BETWEEN = {"matched_threshold": 0.5, "unmatched_threshold": 0.4}


def match(iou_GA, matcher: ArgMaxMatcher | None = None, is_box=None):
    iou_BGA = tf.constant([iou_GA], tf.float32)
    is_box_BG = tf.constant([is_box if is_box is not None else [True] * len(iou_GA)])
    return tf.function(match_anchors)(matcher or ArgMaxMatcher(), iou_BGA, is_box_BG)[0].numpy().tolist()


def test_an_anchor_takes_the_box_it_overlaps_most():
    assert match([[0.6, 0.7, 0.0], [0.8, 0.5, 0.1]]) == [1, 0, -1]


def test_between_the_thresholds_an_anchor_is_ignored():
    assert match([[0.6, 0.45, 0.3]], ArgMaxMatcher(**BETWEEN)) == [0, -2, -1]


def test_the_other_way_round_the_lowest_anchors_are_ignored():
    matcher = ArgMaxMatcher(**BETWEEN, negatives_lower_than_unmatched=False)
    assert match([[0.6, 0.45, 0.3]], matcher) == [0, -1, -2]


def test_without_thresholds_every_anchor_takes_a_box():
    assert match([[0.6, 0.1, 0.0], [0.0, 0.2, 0.0]], ArgMaxMatcher(ignore_thresholds=True)) == [0, 1, 0]


def test_every_box_gets_its_best_anchor_when_forced():
    assert match([[0.1, 0.2], [0.9, 0.0]], FORCED) == [1, 0]


def test_of_two_boxes_that_want_the_same_anchor_the_first_gets_it():
    assert match([[0.3, 0.1], [0.4, 0.2], [0.2, 0.0]], FORCED) == [0, -1]  # as the reference, run on this


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
    matched = match_anchors(ArgMaxMatcher(**settings), iou, tf.zeros([2, 3], tf.bool))
    np.testing.assert_array_equal(matched, np.full([2, 5], -1))
