import math
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.model.losses import HardExampleMiner, WeightedSigmoid
from detloom.trainer_module.detectors.faster_rcnn.losses import (
    detection_targets,
    first_stage_losses,
    proposal_targets,
    sample_anchors,
    second_stage_losses,
)

pytestmark = pytest.mark.usefixtures("eager")
BOXES = tf.constant([[[10, 10, 30, 30], [0, 0, 0, 0]]], tf.float32)
CLASSES, WEIGHTS = tf.constant([[1, -1]]), tf.constant([[1.0, 0.0]])


def test_the_first_stage_ignores_anchors_between_the_thresholds():
    # IoU with the box of 20 x 20: 1, 280 / 520 = 0.54, 80 / 720 = 0.11.
    anchors = tf.constant([[10, 10, 30, 30], [16, 10, 36, 30], [26, 10, 46, 30]], tf.float32)
    targets = proposal_targets(anchors, BOXES, CLASSES, WEIGHTS)
    assert targets.match_BA.numpy().tolist() == [[0, -2, -1]]
    assert targets.channel_BA.numpy().tolist() == [[1, 0, 0]]


def test_the_first_stage_gives_each_box_its_best_anchor():
    targets = proposal_targets(tf.constant([[16, 10, 36, 30], [60, 60, 80, 80]], tf.float32), BOXES, CLASSES, WEIGHTS)
    assert targets.match_BA.numpy().tolist() == [[0, -1]]


def test_the_second_stage_has_one_threshold_and_classes():
    proposals = tf.constant([[[10, 10, 30, 30], [16, 10, 36, 30], [26, 10, 46, 30], [0, 0, 0, 0]]], tf.float32)
    targets = detection_targets(proposals, BOXES, CLASSES, WEIGHTS)
    assert targets.match_BA.numpy().tolist() == [[0, 0, -1, -1]]
    assert targets.channel_BA.numpy().tolist() == [[2, 2, 0, 0]]  # background, class 0, class 1


def test_losses_of_the_first_stage_by_hand(plain_config):
    config = replace(plain_config, first_stage_localization_loss_weight=3.0, first_stage_objectness_loss_weight=2.0)
    anchors = tf.constant([[10, 10, 30, 30], [16, 10, 36, 30], [26, 10, 46, 30], [60, 60, 80, 80]], tf.float32)
    targets = proposal_targets(anchors, BOXES, CLASSES, WEIGHTS)
    sampled = tf.constant([[True, False, True, False]])
    offsets = tf.constant([[[0.5, 2.0, 0.0, 0.0], [9.0] * 4, [9.0] * 4, [9.0] * 4]])
    losses = first_stage_losses(config, anchors, targets, sampled, offsets, tf.zeros([1, 4, 2]))
    # Two sampled anchors with a cross-entropy of log 2; one with a box: 0.5 * 0.5**2 + (2 - 0.5), over 2 samples.
    assert float(losses["rpn_objectness_loss"]) == pytest.approx(2 * math.log(2))
    assert float(losses["rpn_box_loss"]) == pytest.approx(3 * 1.625 / 2)


def test_ignored_anchors_are_never_sampled(plain_config):
    anchors = tf.constant([[10, 10, 30, 30], [16, 10, 36, 30], [26, 10, 46, 30]], tf.float32)
    targets = proposal_targets(anchors, BOXES, CLASSES, WEIGHTS)
    sampled = sample_anchors(plain_config, targets, tf.constant([[0.1, 0.9, 0.2]]))
    assert sampled.numpy().tolist() == [[True, False, True]]


PROPOSALS = tf.constant([[[10, 10, 30, 30], [60, 60, 80, 80], [0, 0, 0, 0]]], tf.float32)


def second(config, offsets, logits=None, num=2):
    targets = detection_targets(PROPOSALS, BOXES, CLASSES, WEIGHTS)
    logits = tf.zeros([1, 3, 3]) if logits is None else logits
    return second_stage_losses(config, PROPOSALS, tf.constant([num]), targets, tf.constant(offsets, tf.float32), logits)


def test_losses_of_the_second_stage_by_hand(plain_config):
    offsets = np.full((1, 3, 1, 4), 9.0)
    offsets[0, 0, 0] = [0.5, 0, 0, 0]
    losses = second(plain_config, offsets)
    # Two proposals of three channels; the box loss of the first, 0.5 * 0.5**2, has the preset's weight 2.
    assert float(losses["class_loss"]) == pytest.approx(math.log(3))
    assert float(losses["box_loss"]) == pytest.approx(2 * 0.125 / 2)


def test_with_a_box_per_class_only_that_of_the_class_counts(plain_config):
    offsets = np.full((1, 3, 2, 4), 9.0)
    offsets[0, 0, 1] = [0.5, 0, 0, 0]  # class index 1
    tensor = tf.constant(offsets, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        targets = detection_targets(PROPOSALS, BOXES, CLASSES, WEIGHTS)
        losses = second_stage_losses(plain_config, PROPOSALS, tf.constant([2]), targets, tensor, tf.zeros([1, 3, 3]))
    assert float(losses["box_loss"]) == pytest.approx(2 * 0.125 / 2)
    gradient = tape.gradient(losses["box_loss"], tensor).numpy()
    assert np.argwhere(gradient).tolist() == [[0, 0, 1, 0]]


def test_padding_has_no_loss(plain_config):
    logits = np.zeros((1, 3, 3), np.float32)
    logits[0, 2] = [0, 9, 0]
    losses = second(plain_config, np.zeros((1, 3, 1, 4)), tf.constant(logits))
    assert float(losses["class_loss"]) == pytest.approx(math.log(3))
    empty = second(plain_config, np.zeros((1, 3, 1, 4)), tf.constant(logits), num=0)
    assert float(empty["class_loss"]) == 0


def test_a_sigmoid_loss_counts_every_channel(plain_config):
    config = replace(plain_config, second_stage_classification_loss=WeightedSigmoid())
    assert float(second(config, np.zeros((1, 3, 1, 4)))["class_loss"]) == pytest.approx(3 * math.log(2))


def test_a_miner_keeps_the_proposals_with_the_highest_loss(plain_config):
    miner = HardExampleMiner(num_hard_examples=1, loss_type="CLASSIFICATION")
    logits = tf.constant([[[0.0, 0, 0], [0, 9, 0], [0, 0, 0]]])
    losses = second(replace(plain_config, hard_example_miner=miner), np.zeros((1, 3, 1, 4)), logits)
    assert float(losses["class_loss"]) == pytest.approx(math.log(2 + math.exp(9)) / 2, rel=1e-5)
