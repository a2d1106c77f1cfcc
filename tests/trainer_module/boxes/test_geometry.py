import numpy as np
import pytest
import tensorflow as tf

from detloom.trainer_module.boxes import geometry as boxes


def random_boxes(count: int, seed: int = 0) -> np.ndarray:
    corners = np.random.default_rng(seed).uniform(0, 1, (count, 2, 2)).astype(np.float32)
    return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=-1)


def test_iou_equals_values_computed_by_hand():
    # unit squares shifted by half a side: intersection 0.5, union 1.5
    iou = boxes.iou_matrix(
        tf.constant([[0.0, 0.0, 1.0, 1.0]]), tf.constant([[0.0, 0.5, 1.0, 1.5], [2.0, 2.0, 3.0, 3.0]])
    )
    np.testing.assert_allclose(iou, [[1 / 3, 0.0]], atol=1e-7)


@pytest.mark.parametrize("count", [0, 1, 50])
def test_laws_hold_for_no_box_one_box_and_a_crowd(count):
    first, second = tf.constant(random_boxes(count)), tf.constant(random_boxes(7, seed=1))
    iou = tf.function(boxes.iou_matrix)(first, second)
    assert iou.shape == (count, 7)
    np.testing.assert_allclose(iou, tf.transpose(boxes.iou_matrix(second, first)), atol=1e-6)
    np.testing.assert_allclose(tf.linalg.diag_part(boxes.iou_matrix(first, first)), np.ones(count), atol=1e-6)
    np.testing.assert_allclose(boxes.cyxhw_to_yxyx(boxes.yxyx_to_cyxhw(first)), first, atol=1e-6)


def test_boxes_without_area_have_no_iou():
    point = tf.constant([[0.5, 0.5, 0.5, 0.5]])
    np.testing.assert_array_equal(boxes.iou_matrix(point, point), [[0.0]])


def test_an_inverted_box_has_no_area():
    np.testing.assert_array_equal(boxes.area(tf.constant([[0.9, 0.1, 0.1, 0.5]])), [0.0])


# By the reference: boxes, others, 1 - IoU, 1 - GIoU and the sum of the absolute gradients of the latter.
REFERENCE_IOU = [
    ([0.38, 0.23, 0.78, 0.54], [0.26, 0.2, 0.78, 0.5], 0.372093, 0.399242, 6.255485),
    ([0.23, 0.48, 0.55, 0.83], [0.05, 0.46, 0.51, 0.86], 0.505051, 0.515051, 5.900892),
    ([0.23, 0.43, 0.45, 0.69], [0.18, 0.38, 0.38, 0.64], 0.594595, 0.666279, 8.643228),
    ([0.37, 0.56, 0.61, 0.95], [0.9, 0.9, 0.95, 0.99], 1.0, 1.606656, 3.459194),
]


@pytest.mark.parametrize(("first", "second", "iou_loss", "giou_loss", "gradient"), REFERENCE_IOU)
def test_iou_and_generalized_iou_equal_the_reference(first, second, iou_loss, giou_loss, gradient):
    first, second = tf.constant([first]), tf.constant([second])
    np.testing.assert_allclose(1 - boxes.iou(first, second), [iou_loss], atol=1e-5)
    with tf.GradientTape() as tape:
        tape.watch(first)
        loss = 1 - boxes.giou(first, second)
    np.testing.assert_allclose(loss, [giou_loss], atol=1e-5)
    np.testing.assert_allclose(tf.reduce_sum(tf.abs(tape.gradient(loss, first))), gradient, rtol=1e-4)


def test_complete_iou_equals_values_computed_by_hand():
    # height 2, width 2 against height 2, width 4: overlap 4 of 8; centres 1 apart, hull 2 x 4: distance 1 / 20.
    # Angles atan(2 / 2) and atan(4 / 2); v = 4 / pi ** 2 * difference ** 2; weight v / (1 - IoU + v).
    first, second = tf.constant([[0.0, 0.0, 2.0, 2.0]]), tf.constant([[0.0, 0.0, 2.0, 4.0]])
    v = 4 / np.pi**2 * (np.arctan(1) - np.arctan(2)) ** 2
    np.testing.assert_allclose(boxes.ciou(first, second), [0.5 - 1 / 20 - v * v / (0.5 + v)], rtol=1e-5)


@pytest.mark.parametrize("similarity", [boxes.iou, boxes.giou, boxes.ciou])
def test_a_box_has_similarity_one_with_itself_and_a_point_gives_no_nan(similarity):
    box, point = tf.constant([[0.1, 0.2, 0.5, 0.8]]), tf.constant([[0.5, 0.5, 0.5, 0.5]])
    np.testing.assert_allclose(similarity(box, box), [1.0], atol=1e-6)
    with tf.GradientTape() as tape:
        tape.watch(point)
        value = similarity(point, point)
    assert np.isfinite(value).all()
    assert np.isfinite(tape.gradient(value, point)).all()


def test_boxes_without_overlap_have_a_gradient():
    first, second = tf.constant([[0.1, 0.1, 0.3, 0.3]]), tf.constant([[0.6, 0.1, 0.8, 0.3]])
    for similarity in (boxes.giou, boxes.ciou):
        with tf.GradientTape() as tape:
            tape.watch(first)
            loss = 1 - similarity(first, second)
        assert float(tape.gradient(loss, first)[0, 2]) < 0  # a lower edge further down lowers the loss
