import json

import numpy as np
import tensorflow as tf

from detloom.schemas.config import BoxCoder, Losses, Matcher, Ssd
from detloom.trainer_module.anchors import build_anchors
from detloom.trainer_module.losses import Targets, assign_targets, detection_losses, huber_loss, sigmoid_focal_loss

MODEL = "ssd_mobilenet_v2_fpnlite_320x320"


def test_focal_loss_by_hand():
    # p = sigmoid(0) = 0.5; target 1: 0.25 * 0.5**2 * ln 2; target 0: 0.75 * 0.5**2 * ln 2
    loss = sigmoid_focal_loss(tf.zeros([2]), tf.constant([1.0, 0.0]), alpha=0.25, gamma=2.0)
    np.testing.assert_allclose(loss, [0.0625 * np.log(2), 0.1875 * np.log(2)], rtol=1e-6)


def test_huber_loss_by_hand():
    # 0.5 * 0.5**2 inside; 1 * 3 - 0.5 outside
    np.testing.assert_allclose(huber_loss(tf.constant([0.5, -3.0]), delta=1.0), [0.125, 2.5])


def test_a_picture_without_boxes_has_only_background():
    anchors = tf.constant([[0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 1.0, 1.0]])
    targets = assign_targets(Matcher(), BoxCoder(), anchors, tf.zeros([1, 3, 4]), -tf.ones([1, 3], tf.int32), 2)
    losses = detection_losses(Losses(), targets, tf.ones([1, 2, 4]), tf.zeros([1, 2, 2]))
    # 2 anchors * 2 classes * 0.75 * 0.25 * ln 2, divided by at least one match
    np.testing.assert_allclose(losses["class_loss"], 4 * 0.1875 * np.log(2), rtol=1e-6)
    assert float(losses["box_loss"]) == 0.0


def test_ignored_anchors_cost_nothing():
    ones = tf.ones([1, 1])
    targets = Targets(tf.zeros([1, 1, 4]), tf.zeros([1, 1, 2]), 0 * ones, 0 * ones)
    assert float(detection_losses(Losses(), targets, tf.ones([1, 1, 4]), tf.ones([1, 1, 2]))["loss"]) == 0.0


def reference_targets(folder):
    truth, stored = np.load(folder / "groundtruth.npz"), np.load(folder / "targets.npz")
    boxes, classes = np.zeros([2, 4, 4], np.float32), np.full([2, 4], -1, np.int32)
    for i in range(2):
        count = len(truth[f"boxes{i}"])
        boxes[i, :count], classes[i, :count] = truth[f"boxes{i}"], truth[f"classes{i}"]
    anchors = tf.constant(build_anchors(Ssd()))
    return assign_targets(Matcher(), BoxCoder(), anchors, tf.constant(boxes), tf.constant(classes), 90), stored


def test_targets_equal_the_reference(reference_dir):
    targets, stored = reference_targets(reference_dir / MODEL)
    np.testing.assert_array_equal(targets.is_foreground_BA, stored["match"] >= 0)
    np.testing.assert_array_equal(targets.classes_BAK, stored["cls_targets"][..., 1:])
    np.testing.assert_allclose(targets.offsets_BA4, stored["reg_targets"], atol=1e-5)


def test_losses_equal_the_reference(reference_dir):
    targets, stored = reference_targets(reference_dir / MODEL)
    # The reference weighs one of its boxes by a half, and its head has a background channel whose target is always 0.
    weighted = targets._replace(
        is_foreground_BA=tf.constant(stored["reg_weights"]),
        class_weight_BA=tf.constant(stored["cls_weights"][..., 0]),
        classes_BAK=tf.pad(targets.classes_BAK, [[0, 0], [0, 0], [1, 0]]),
    )
    raw = np.load(reference_dir / MODEL / "predictions_eval.npz")
    logits = tf.constant(raw["class_predictions_with_background"])
    losses = detection_losses(Losses(), weighted, tf.constant(raw["box_encodings"]), logits)
    expected = json.loads((reference_dir / MODEL / "summary.json").read_text())["losses_eval_mode"]
    np.testing.assert_allclose(losses["class_loss"], expected["Loss/classification_loss"], rtol=1e-5)
    np.testing.assert_allclose(losses["box_loss"], expected["Loss/localization_loss"], rtol=1e-5)
