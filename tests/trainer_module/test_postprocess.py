import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.detections import BOXES, CLASSES, NUM_DETECTIONS, SCORES
from detloom.trainer_module.postprocess import build_detections

ANCHORS = tf.constant([[0.0, 0.0, 0.5, 0.5], [0.0, 0.0, 0.5, 0.45], [0.6, 0.6, 1.1, 1.1]])


@pytest.fixture
def detect(tiny_config, changed):
    def run(logits, **settings):
        nms = "post_processing.batch_non_max_suppression"
        sizes = {f"{nms}.max_detections_per_class": 5, f"{nms}.max_total_detections": 5}
        config = changed(tiny_config.model, {f"{nms}.score_threshold": 0.1, **sizes, **settings})
        offsets = tf.zeros([1, 3, 4])  # zero offsets: every box is its anchor
        outputs = tf.function(build_detections)(
            config, ANCHORS, tf.constant([3, 8]), offsets, tf.constant([logits], tf.float32)
        )
        return {name: value[0].numpy() for name, value in outputs.items()}

    return run


def test_the_weaker_of_two_overlapping_boxes_of_one_class_is_suppressed(detect):
    outputs = detect([[2, -9], [1, -9], [0, -9]])
    assert outputs[NUM_DETECTIONS] == 2
    np.testing.assert_allclose(outputs[SCORES][:2], [1 / (1 + np.exp(-2)), 0.5], rtol=1e-5)
    np.testing.assert_allclose(outputs[BOXES][0], [0, 0, 0.5, 0.5], atol=1e-6)


def test_boxes_of_different_classes_do_not_suppress_each_other(detect):
    outputs = detect([[2, -9], [-9, 1], [-9, -9]])
    np.testing.assert_array_equal(outputs[CLASSES], [3, 8, 0, 0, 0])  # label-map ids; 0 pads


def test_boxes_are_clipped_to_the_picture(detect):
    outputs = detect([[-9, -9], [-9, -9], [3, -9]])
    np.testing.assert_allclose(outputs[BOXES][0], [0.6, 0.6, 1.0, 1.0], atol=1e-6)


def test_nothing_above_the_threshold_is_no_detection(detect):
    outputs = detect([[-9, -9]] * 3)
    assert outputs[NUM_DETECTIONS] == 0
    assert not outputs[SCORES].any()


def test_the_background_channel_is_never_a_detection(detect):
    outputs = detect([[9, -9, 2], [9, -9, -9], [9, -9, -9]], add_background_class=True)
    np.testing.assert_array_equal(outputs[CLASSES], [8, 0, 0, 0, 0])


def test_the_logit_scale_divides_logits(detect):
    outputs = detect([[3, -9], [-9, -9], [-9, -9]], **{"post_processing.logit_scale": 1.5})
    np.testing.assert_allclose(outputs[SCORES][0], 1 / (1 + np.exp(-2)), rtol=1e-5)
