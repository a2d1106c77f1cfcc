import numpy as np
import pytest
import tensorflow as tf

from detloom.trainer_module.boxes.targets import assign_targets
from detloom.trainer_module.detectors.one_stage.losses import target_settings

ANCHORS = tf.constant([[0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 1.0, 1.0]])
FIRST_ANCHOR = ANCHORS[tf.newaxis, :1]  # as a ground-truth box


@pytest.mark.parametrize(
    ("with_background", "as_zeros", "foreground", "background"),
    [(False, False, 1, -1), (False, True, 1, -1), (True, True, 2, -1), (True, False, 2, 0)],
)
def test_the_background_channel_comes_first(zoo_config, changed, with_background, as_zeros, foreground, background):
    flags = {"add_background_class": with_background, "encode_background_as_zeros": as_zeros}
    config = changed(zoo_config.model, flags)
    targets = assign_targets(target_settings(config), ANCHORS, FIRST_ANCHOR, tf.constant([[1]]))  # class 1 on anchor 0
    np.testing.assert_array_equal(targets.channel_BA, [[foreground, background]])


def test_boxes_have_their_weight_and_background_the_configured_one(zoo_config, changed):
    config = changed(zoo_config.model, {"negative_class_weight": 0.25})
    targets = assign_targets(target_settings(config), ANCHORS, FIRST_ANCHOR, tf.constant([[1]]), tf.constant([[0.5]]))
    np.testing.assert_array_equal(targets.box_weight_BA, [[0.5, 0.0]])
    np.testing.assert_array_equal(targets.class_weight_BA, [[0.5, 0.25]])


def test_an_ignored_anchor_has_weight_zero(zoo_config, changed):
    config = changed(zoo_config.model, {"matcher.unmatched_threshold": 0.4, "matcher.force_match_for_each_row": False})
    boxes = tf.constant([[[0.0, 0.0, 0.5, 0.225]]])  # IoU 0.45 with the first anchor
    targets = assign_targets(target_settings(config), ANCHORS, boxes, tf.constant([[0]]))
    np.testing.assert_array_equal(targets.match_BA, [[-2, -1]])
    np.testing.assert_array_equal(targets.class_weight_BA, [[0.0, 1.0]])
    np.testing.assert_array_equal(targets.offsets_BA4, np.zeros([1, 2, 4]))


@pytest.mark.parametrize(("num_rows", "jit_compile"), [(0, True), (None, False)])
def test_ground_truth_without_rows_gives_background(zoo_config, num_rows, jit_compile):
    rows = [tf.TensorSpec([2, num_rows, 4]), tf.TensorSpec([2, num_rows], tf.int32), tf.TensorSpec([2, num_rows])]
    settings = target_settings(zoo_config.model)
    assign = tf.function(lambda *given: assign_targets(settings, ANCHORS, *given), rows, jit_compile=jit_compile)
    targets = assign(tf.zeros([2, 0, 4]), tf.zeros([2, 0], tf.int32), tf.zeros([2, 0]))
    np.testing.assert_array_equal(targets.match_BA, [[-1, -1], [-1, -1]])
    np.testing.assert_array_equal(targets.class_weight_BA, np.ones([2, 2]))
    np.testing.assert_array_equal(targets.offsets_BA4, np.zeros([2, 2, 4]))


def test_a_box_of_weight_zero_takes_anchors_but_is_not_forced_on_one(zoo_config, changed):
    config = changed(zoo_config.model, {"matcher.force_match_for_each_row": True})
    boxes = tf.constant([[[0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 0.6, 0.6]]])  # IoU 1 with anchor 0; 0.04 with anchor 1
    targets = assign_targets(target_settings(config), ANCHORS, boxes, tf.constant([[0, 0]]), tf.zeros([1, 2]))
    np.testing.assert_array_equal(targets.match_BA, [[0, -1]])  # as the reference
    np.testing.assert_array_equal(targets.class_weight_BA, [[0.0, 1.0]])
