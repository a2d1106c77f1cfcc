import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.model.detector import FasterRcnnBoxCoder
from detloom.trainer_module.boxes.box_coder import decode_boxes, encode_boxes

CODER = FasterRcnnBoxCoder()


def test_offsets_equal_values_computed_by_hand():
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


def test_each_offset_has_its_own_scale():
    coder = FasterRcnnBoxCoder(y_scale=1, x_scale=2, height_scale=3, width_scale=4)
    anchors, boxes = tf.constant([[0.0, 0.0, 1.0, 1.0]]), tf.constant([[0.0, 0.0, 2.0, 2.0]])
    # the centre moves by 0.5 each way, both sides double
    np.testing.assert_allclose(
        encode_boxes(coder, boxes, anchors), [[0.5, 1.0, 3 * np.log(2), 4 * np.log(2)]], rtol=1e-6
    )
    np.testing.assert_allclose(decode_boxes(coder, encode_boxes(coder, boxes, anchors), anchors), boxes, atol=1e-6)
