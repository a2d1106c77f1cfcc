import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.config import Matcher
from detloom.trainer_module.matcher import match_anchors


def match(iou_GA, matcher: Matcher | None = None, is_box=None):
    iou_BGA = tf.constant([iou_GA], tf.float32)
    is_box_BG = tf.constant([is_box if is_box is not None else [True] * len(iou_GA)])
    return tf.function(match_anchors)(matcher or Matcher(force_match=False), iou_BGA, is_box_BG)[0].numpy().tolist()


def test_an_anchor_takes_the_box_it_overlaps_most():
    assert match([[0.6, 0.7, 0.0], [0.8, 0.5, 0.1]]) == [1, 0, -1]


def test_between_the_thresholds_an_anchor_is_ignored():
    assert match([[0.6, 0.45, 0.3]], Matcher(foreground_iou=0.5, background_iou=0.4, force_match=False)) == [0, -2, -1]


def test_every_box_gets_its_best_anchor_when_forced():
    assert match([[0.1, 0.2], [0.9, 0.0]], Matcher()) == [1, 0]


def test_of_two_boxes_that_want_the_same_anchor_the_later_gets_it():
    assert match([[0.3, 0.1], [0.2, 0.0]], Matcher()) == [1, -1]


def test_padding_rows_match_nothing():
    assert match([[0.9, 0.2], [0.95, 0.9]], Matcher(), is_box=[True, False]) == [0, -1]


@pytest.mark.parametrize("force_match", [True, False])
def test_without_boxes_every_anchor_is_background(force_match):
    iou = tf.zeros([2, 3, 5])
    matched = match_anchors(Matcher(force_match=force_match), iou, tf.zeros([2, 3], tf.bool))
    np.testing.assert_array_equal(matched, np.full([2, 5], -1))
