import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.model.detector import ArgMaxMatcher
from detloom.trainer_module.boxes.matcher import match_anchors

PLAIN, FORCED = ArgMaxMatcher(), ArgMaxMatcher(force_match_for_each_row=True)
BETWEEN = {"matched_threshold": 0.5, "unmatched_threshold": 0.4}


def match_batch(matcher: ArgMaxMatcher, iou_BGA, is_box_BG, is_forced_BG):
    return match_anchors(matcher, lambda g: iou_BGA[:, g], is_box_BG, is_forced_BG, iou_BGA.shape[2])


def match(iou_GA, matcher: ArgMaxMatcher | None = None, is_box=None, is_forced=None):
    iou_BGA = tf.constant([iou_GA], tf.float32)
    is_box_BG = tf.constant([is_box or [True] * len(iou_GA)])
    is_forced_BG = tf.constant([is_forced or [True] * len(iou_GA)]) & is_box_BG
    return match_batch(matcher or ArgMaxMatcher(), iou_BGA, is_box_BG, is_forced_BG)[0].numpy().tolist()


@pytest.mark.parametrize(
    ("iou_GA", "matcher", "expected"),
    [
        ([[0.6, 0.7, 0.0], [0.8, 0.5, 0.1]], PLAIN, [1, 0, -1]),  # an anchor takes the box it overlaps most
        ([[0.6, 0.6, 0.2], [0.6, 0.6, 0.2]], PLAIN, [0, 0, -1]),  # of equal overlaps, the first box
        ([[0.1], [0.7], [0.6]], PLAIN, [1]),
        ([[0.6, 0.45, 0.3]], ArgMaxMatcher(**BETWEEN), [0, -2, -1]),  # between the thresholds, it is ignored
        ([[0.6, 0.45, 0.3]], ArgMaxMatcher(**BETWEEN, negatives_lower_than_unmatched=False), [0, -1, -2]),
        ([[0.6, 0.1, 0.0], [0.0, 0.2, 0.0]], ArgMaxMatcher(ignore_thresholds=True), [0, 1, 0]),
        ([[0.1, 0.2], [0.9, 0.0]], FORCED, [1, 0]),  # every box gets its best anchor
        ([[0.3, 0.1], [0.4, 0.2], [0.2, 0.0]], FORCED, [0, -1]),  # the first box gets it, as in the reference
        ([[0.2, 0.2], [0.3, 0.3]], FORCED, [0, -1]),  # both boxes want anchor 0
        ([[0.0, 0.0, 0.0]], FORCED, [0, -1, -1]),  # a box that overlaps nothing gets the first anchor, as there
        ([[0.1], [0.7], [0.6]], FORCED, [0]),
    ],
)
def test_anchors_match_boxes(iou_GA, matcher, expected):
    assert match(iou_GA, matcher) == expected


def test_padding_matches_nothing():
    assert match([[0.9, 0.9], [0.6, 0.1]], is_box=[False, True]) == [1, -1]
    assert match([[0.9, 0.2], [0.95, 0.9]], FORCED, is_box=[True, False]) == [0, -1]


def test_a_box_that_is_not_forced_takes_only_what_it_overlaps():
    assert match([[0.2, 0.0], [0.0, 0.6]], FORCED, is_forced=[False, True]) == [-1, 1]


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
