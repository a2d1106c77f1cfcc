import numpy as np
import tensorflow as tf

from detloom.schemas.config import BoxCoder, Nms
from detloom.schemas.detections import BOXES, CLASSES, NUM_DETECTIONS, SCORES
from detloom.trainer_module.postprocess import build_detections

ANCHORS = tf.constant([[0.0, 0.0, 0.5, 0.5], [0.0, 0.0, 0.5, 0.45], [0.6, 0.6, 1.1, 1.1]])


def detect(logits, nms):
    batch = tf.constant([logits], tf.float32)
    offsets = tf.zeros([1, 3, 4])  # zero offsets: every box is its anchor
    outputs = tf.function(build_detections)(nms, BoxCoder(), ANCHORS, tf.constant([3, 8]), offsets, batch)
    return {name: value[0].numpy() for name, value in outputs.items()}


def test_the_weaker_of_two_overlapping_boxes_of_one_class_is_suppressed():
    outputs = detect([[2, -9], [1, -9], [0, -9]], Nms(score_threshold=0.1, max_detections=5))
    assert outputs[NUM_DETECTIONS] == 2
    np.testing.assert_allclose(outputs[SCORES][:2], [1 / (1 + np.exp(-2)), 0.5], rtol=1e-5)
    np.testing.assert_allclose(outputs[BOXES][0], [0, 0, 0.5, 0.5], atol=1e-6)


def test_boxes_of_different_classes_do_not_suppress_each_other():
    outputs = detect([[2, -9], [-9, 1], [-9, -9]], Nms(score_threshold=0.1, max_detections=5))
    np.testing.assert_array_equal(outputs[CLASSES], [3, 8, 0, 0, 0])  # label-map ids; 0 pads


def test_boxes_are_clipped_to_the_picture():
    outputs = detect([[-9, -9], [-9, -9], [3, -9]], Nms(score_threshold=0.1, max_detections=5))
    np.testing.assert_allclose(outputs[BOXES][0], [0.6, 0.6, 1.0, 1.0], atol=1e-6)


def test_nothing_above_the_threshold_is_no_detection():
    outputs = detect([[-9, -9]] * 3, Nms(score_threshold=0.1, max_detections=5))
    assert outputs[NUM_DETECTIONS] == 0
    assert not outputs[SCORES].any()
