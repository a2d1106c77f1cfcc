import json

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.model_config import SigmoidFocal, WeightedL2, WeightedSigmoid, WeightedSmoothL1
from detloom.trainer_module.anchors import build_anchors
from detloom.trainer_module.losses import (
    Targets,
    assign_targets,
    classification_loss,
    detection_losses,
    localization_loss,
)

MODEL = "ssd_mobilenet_v2_fpnlite_320x320"
LN2 = np.log(2)
ANCHORS = tf.constant([[0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 1.0, 1.0]])


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        # p = sigmoid(0) = 0.5; target 1: 0.25 * 0.5**2 * ln 2; target 0: 0.75 * 0.5**2 * ln 2
        (SigmoidFocal(alpha=0.25, gamma=2.0), [0.0625 * LN2, 0.1875 * LN2]),
        (SigmoidFocal(alpha=None, gamma=1.0), [0.5 * LN2, 0.5 * LN2]),
        (WeightedSigmoid(), [LN2, LN2]),
    ],
)
def test_classification_losses_by_hand(config, expected):
    loss = tf.function(classification_loss)(config, tf.zeros([2]), tf.constant([1.0, 0.0]))
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (WeightedSmoothL1(delta=1.0), [0.125, 2.5]),  # 0.5 * 0.5**2 inside; 1 * 3 - 0.5 outside
        (WeightedSmoothL1(delta=4.0), [0.125, 4.5]),  # 0.5 * 3**2: still inside
        (WeightedL2(), [0.125, 4.5]),
    ],
)
def test_localization_losses_by_hand(config, expected):
    np.testing.assert_allclose(tf.function(localization_loss)(config, tf.constant([0.5, -3.0])), expected)


def make_targets() -> Targets:
    """Two anchors of one picture: the first foreground of class 0 of one, the second background."""
    return Targets(
        offsets_BA4=tf.zeros([1, 2, 4]),
        classes_BAC=tf.constant([[[1.0], [0.0]]]),
        is_foreground_BA=tf.constant([[1.0, 0.0]]),
        class_weight_BA=tf.ones([1, 2]),
    )


@pytest.mark.parametrize(
    ("settings", "class_loss", "box_loss"),
    [
        ({}, 2 * LN2, 4 * 0.5),  # both anchors; four offsets, each wrong by 1, of the foreground anchor
        ({"normalize_loc_loss_by_codesize": True}, 2 * LN2, 0.5),
        ({"loss.classification_weight": 3.0, "loss.localization_weight": 5.0}, 6 * LN2, 10.0),
    ],
)
def test_losses_are_sums_with_weights(zoo_config, changed, settings, class_loss, box_loss):
    plain = {"normalize_loc_loss_by_codesize": False, "loss.classification_loss": WeightedSigmoid()}
    config = changed(zoo_config.model, {**plain, **settings})
    losses = detection_losses(config, make_targets(), tf.ones([1, 2, 4]), tf.zeros([1, 2, 1]))
    np.testing.assert_allclose([losses["class_loss"], losses["box_loss"]], [class_loss, box_loss], rtol=1e-6)


def test_two_matches_halve_both_losses_if_they_are_normalized_by_them(zoo_config, changed):
    targets = make_targets()._replace(is_foreground_BA=tf.ones([1, 2]))
    outputs = (tf.ones([1, 2, 4]), tf.zeros([1, 2, 1]))
    normalized, plain = (
        detection_losses(changed(zoo_config.model, {"normalize_loss_by_num_matches": flag}), targets, *outputs)
        for flag in (True, False)
    )
    for name in ("class_loss", "box_loss"):
        np.testing.assert_allclose(normalized[name], plain[name] / 2, rtol=1e-6)


def test_a_picture_without_boxes_has_only_background(zoo_config, changed):
    config = changed(zoo_config.model, {"add_background_class": False})
    targets = assign_targets(config, ANCHORS, tf.zeros([1, 3, 4]), -tf.ones([1, 3], tf.int32), 2)
    losses = detection_losses(config, targets, tf.ones([1, 2, 4]), tf.zeros([1, 2, 2]))
    # 2 anchors * 2 classes * 0.75 * 0.25 * ln 2, divided by at least one match
    np.testing.assert_allclose(losses["class_loss"], 4 * 0.1875 * LN2, rtol=1e-6)
    assert float(losses["box_loss"]) == 0.0


@pytest.mark.parametrize(
    ("with_background", "as_zeros", "foreground", "background"),
    [
        (False, False, [0, 1], [0, 0]),
        (True, True, [0, 0, 1], [0, 0, 0]),
        (True, False, [0, 0, 1], [1, 0, 0]),
    ],
)
def test_the_background_channel_comes_first(zoo_config, changed, with_background, as_zeros, foreground, background):
    flags = {"add_background_class": with_background, "encode_background_as_zeros": as_zeros}
    config = changed(zoo_config.model, flags)
    targets = assign_targets(config, ANCHORS, ANCHORS[tf.newaxis, :1], tf.constant([[1]]), 2)  # class 1 on anchor 0
    np.testing.assert_array_equal(targets.classes_BAC[0], [foreground, background])


def test_ignored_anchors_cost_nothing(zoo_config):
    ones = tf.ones([1, 1])
    targets = Targets(tf.zeros([1, 1, 4]), tf.zeros([1, 1, 2]), 0 * ones, 0 * ones)
    losses = detection_losses(zoo_config.model, targets, tf.ones([1, 1, 4]), tf.ones([1, 1, 2]))
    assert [float(loss) for loss in losses.values()] == [0.0, 0.0]


def reference_targets(model, folder):
    truth, stored = np.load(folder / "groundtruth.npz"), np.load(folder / "targets.npz")
    boxes, classes = np.zeros([2, 4, 4], np.float32), np.full([2, 4], -1, np.int32)
    for i in range(2):
        count = len(truth[f"boxes{i}"])
        boxes[i, :count], classes[i, :count] = truth[f"boxes{i}"], truth[f"classes{i}"]
    anchors = tf.constant(build_anchors(model.anchor_generator, (320, 320)))
    return assign_targets(model, anchors, tf.constant(boxes), tf.constant(classes), 90), stored


def test_targets_equal_the_reference(reference_dir, zoo_config):
    targets, stored = reference_targets(zoo_config.model, reference_dir / MODEL)
    np.testing.assert_array_equal(targets.is_foreground_BA, stored["match"] >= 0)
    np.testing.assert_array_equal(targets.classes_BAC, stored["cls_targets"])
    np.testing.assert_allclose(targets.offsets_BA4, stored["reg_targets"], atol=1e-5)


def test_losses_equal_the_reference(reference_dir, zoo_config):
    targets, stored = reference_targets(zoo_config.model, reference_dir / MODEL)
    weighted = targets._replace(  # the reference weighs one of its boxes by a half
        is_foreground_BA=tf.constant(stored["reg_weights"]),
        class_weight_BA=tf.constant(stored["cls_weights"][..., 0]),
    )
    raw = np.load(reference_dir / MODEL / "predictions_eval.npz")
    logits = tf.constant(raw["class_predictions_with_background"])
    losses = detection_losses(zoo_config.model, weighted, tf.constant(raw["box_encodings"]), logits)
    expected = json.loads((reference_dir / MODEL / "summary.json").read_text())["losses_eval_mode"]
    np.testing.assert_allclose(losses["class_loss"], expected["Loss/classification_loss"], rtol=1e-5)
    np.testing.assert_allclose(losses["box_loss"], expected["Loss/localization_loss"], rtol=1e-5)
