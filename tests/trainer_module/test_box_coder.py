import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.model_config import FasterRcnnBoxCoder, KeypointBoxCoder
from detloom.trainer_module.box_coder import decode_boxes, decode_keypoints, encode_boxes, encode_keypoints

CODER = FasterRcnnBoxCoder()


def test_offsets_by_hand():
    anchors = tf.constant([[0.0, 0.0, 0.2, 0.4]])  # centre (0.1, 0.2), size (0.2, 0.4)
    boxes = tf.constant([[0.1, 0.2, 0.5, 0.6]])  # centre (0.3, 0.4), size (0.4, 0.4)
    # y: 10 * (0.3 - 0.1) / 0.2 = 10; x: 10 * 0.2 / 0.4 = 5; height: 5 * ln 2; width: 5 * ln 1
    np.testing.assert_allclose(encode_boxes(CODER, boxes, anchors), [[10, 5, 5 * np.log(2), 0]], atol=1e-4)


@pytest.mark.parametrize("count", [0, 1, 100])
def test_decode_inverts_encode(count):
    rng = np.random.default_rng(count)
    low, size = rng.uniform(0, 0.5, (2, count, 2)), rng.uniform(0.05, 0.5, (2, count, 2))
    boxes, anchors = (tf.constant(np.concatenate([a, a + s], -1), tf.float32) for a, s in zip(low, size, strict=True))
    decoded = tf.function(decode_boxes)(CODER, encode_boxes(CODER, boxes, anchors), anchors)
    np.testing.assert_allclose(decoded, boxes, atol=1e-5)


def test_a_padding_box_stays_finite():
    assert np.isfinite(encode_boxes(CODER, tf.zeros([1, 4]), tf.constant([[0.0, 0.0, 0.2, 0.2]]))).all()


def test_each_number_has_a_scale_of_its_own():
    coder = FasterRcnnBoxCoder(y_scale=1, x_scale=2, height_scale=3, width_scale=4)
    anchors, boxes = tf.constant([[0.0, 0.0, 1.0, 1.0]]), tf.constant([[0.0, 0.0, 2.0, 2.0]])
    # the centre moves by 0.5 each way, both sides double
    np.testing.assert_allclose(
        encode_boxes(coder, boxes, anchors), [[0.5, 1.0, 3 * np.log(2), 4 * np.log(2)]], rtol=1e-6
    )
    np.testing.assert_allclose(decode_boxes(coder, encode_boxes(coder, boxes, anchors), anchors), boxes, atol=1e-6)


def test_keypoints_are_offsets_from_the_anchors_centre_in_its_sides():
    coder = KeypointBoxCoder(num_keypoints=2, y_scale=1.0, x_scale=2.0)
    anchors = tf.constant([[0.0, 0.0, 0.4, 0.5], [0.2, 0.2, 0.6, 0.8]])  # centres (0.2, 0.25), (0.4, 0.5)
    points = tf.constant([[[0.2, 0.3], [0.4, 0.4]], [[0.35, 0.5], [0.3, 0.9]]])
    # y: (0.4 - 0.2) / 0.4; x: 2 * (0.3 - 0.25) / 0.5 and so on; the reference gives the same
    expected = [[0.0, 0.2, 0.5, 0.6], [-0.125, 0.0, -0.25, 1.333333]]
    offsets = encode_keypoints(coder, points, anchors)
    np.testing.assert_allclose(offsets, expected, atol=1e-6)
    np.testing.assert_allclose(decode_keypoints(coder, offsets, anchors), points, atol=1e-6)
    np.testing.assert_allclose(encode_keypoints(coder, points[tf.newaxis], anchors)[0], offsets)


def test_an_unknown_keypoint_stays_unknown():
    coder = KeypointBoxCoder(num_keypoints=1)
    anchors = tf.constant([[0.0, 0.0, 0.4, 0.5]])
    assert np.isnan(encode_keypoints(coder, tf.constant([[[np.nan, np.nan]]]), anchors)).all()
