import functools
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.model.non_max_suppression import BatchNonMaxSuppression
from detloom.trainer_module.boxes import nms

WHOLE = (0.0, 0.0, 1.0, 1.0)


def overlaps(box, boxes):
    sides = np.minimum(box[2:], boxes[:, 2:]) - np.maximum(box[:2], boxes[:, :2])
    shared = np.maximum(sides, 0).prod(axis=1)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    return shared / ((box[2:] - box[:2]).prod() + areas - shared)


def one_pair_after_the_other(config, boxes, scores, window):
    """The definition: within each class on its own, over all boxes; then the best of all classes that can be seen."""
    kept = []
    for class_index, of_class in enumerate(scores.T):
        left = of_class.astype(float)
        for _ in range(config.max_detections_per_class):
            best = int(np.argmax(left))
            if left[best] <= config.score_threshold:
                break
            kept.append((-left[best], class_index, best))
            iou = overlaps(boxes[best], boxes)
            if config.soft_nms_sigma:
                left *= np.exp(-(iou**2) / (2 * config.soft_nms_sigma))
            else:
                left[iou > config.iou_threshold] = -1
            left[best] = -1
    clipped = np.clip(boxes, np.tile(window[:2], 2), np.tile(window[2:], 2))
    has_area = (clipped[:, 2:] > clipped[:, :2]).all(axis=1)
    seen = [(box, class_index, -score) for score, class_index, box in sorted(kept) if has_area[box]]
    return seen[: config.max_total_detections]


def select(config, boxes_BN4, scores_BNK, window=WHOLE, *, on_host=False):
    boxes, scores = tf.cast(boxes_BN4, tf.float32), tf.cast(scores_BNK, tf.float32)
    windows = tf.tile(tf.constant([window], tf.float32), [scores.shape[0], 1])
    return nms.select_boxes(
        config,
        scores,
        tf.identity,
        lambda indices: tf.gather(boxes, indices, batch_dims=1),
        windows,
        on_host=on_host,
    )


def crowd(num_boxes, num_classes, seed, num_places=6):
    """Boxes of two images around a few places, also beyond the window, so that most overlap many."""
    rng = np.random.default_rng(seed)
    centers = rng.uniform(-0.2, 1.2, (2, num_places, 2))[:, rng.integers(0, num_places, num_boxes)]
    centers += rng.normal(0, 0.04, centers.shape)
    sizes = rng.uniform(0.15, 0.3, (2, num_boxes, 2))
    boxes = np.concatenate([centers - sizes / 2, centers + sizes / 2], axis=-1).astype(np.float32)
    return boxes, rng.uniform(0, 1, (2, num_boxes, num_classes)).round(2).astype(np.float32)  # rounded: many tie


def assert_as_defined(selection, config, boxes, scores, window=WHOLE):
    for i in range(len(boxes)):
        expected = one_pair_after_the_other(config, boxes[i], scores[i], np.array(window))
        count = int(selection.num_selected_B[i])
        pairs = np.stack([selection.box_indices_BM[i], selection.class_indices_BM[i]], axis=1)[:count]
        assert pairs.tolist() == [[box, class_index] for box, class_index, _ in expected]
        np.testing.assert_allclose(selection.scores_BM[i, :count], [score for *_, score in expected], rtol=1e-5)
        assert not np.any(selection.scores_BM[i, count:])


SETTINGS = {
    "plenty": {"max_detections_per_class": 20, "max_total_detections": 20},
    "few of a class": {"max_detections_per_class": 2, "max_total_detections": 20},
    "more than there are": {"max_detections_per_class": 200, "max_total_detections": 200},
    "a threshold": {"max_detections_per_class": 20, "max_total_detections": 20, "score_threshold": 0.9},
    "soft": {"max_detections_per_class": 20, "max_total_detections": 20, "soft_nms_sigma": 0.5},
    "soft, few of a class": {"max_detections_per_class": 2, "max_total_detections": 20, "soft_nms_sigma": 0.2},
}


@pytest.fixture
def check(monkeypatch):
    """Return a function that selects with some settings and compares with the definition. Blocks have 16 pairs."""

    def run(name, nums_of_pairs, function=select):
        monkeypatch.setattr(nms, "_NUMS_OF_PAIRS", nums_of_pairs)
        monkeypatch.setattr(nms, "_NUMS_OF_SOFT_PAIRS", nums_of_pairs)
        monkeypatch.setattr(nms, "_BLOCK", 16)
        config = BatchNonMaxSuppression(iou_threshold=0.4, **SETTINGS[name])
        boxes, scores = crowd(60, 3, seed=8)
        if config.soft_nms_sigma:  # no ties: there the order of lowered scores hangs on rounding
            scores = np.random.default_rng(1).permutation(scores.size).reshape(scores.shape) / np.float32(scores.size)
        window = (0.0, 0.0, 0.75, 1.0)
        assert_as_defined(function(config, boxes, scores, window), config, boxes, scores, window)

    return run


@pytest.mark.parametrize("nums_of_pairs", [(8, 64), (512,), ()])
@pytest.mark.parametrize("name", SETTINGS)
def test_result_equals_suppression_of_each_class_over_all_boxes(check, name, nums_of_pairs):
    """512 pairs are enough; 8 and 64 are not, so that all pairs are looked at."""
    check(name, nums_of_pairs)


@pytest.mark.parametrize("nums_of_pairs", [(8, 64), (512,)])
@pytest.mark.parametrize("name", ["soft", "soft, few of a class"])
def test_suppression_on_the_host_is_the_same(check, name, nums_of_pairs):
    check(name, nums_of_pairs, functools.partial(select, on_host=True))


@pytest.mark.parametrize(
    ("name", "jit_compile"),
    [("few of a class", True), ("plenty", False), pytest.param("soft", True, marks=pytest.mark.nightly)],
)
def test_result_is_the_same_in_a_graph_and_under_xla(check, name, jit_compile):
    check(name, (8, 64), tf.function(select, autograph=False, jit_compile=jit_compile))


def test_an_image_whose_pairs_are_all_selected_stays_as_it_is_while_another_goes_on():
    """Scores below the threshold that are not probabilities: the first image has one pair above it, the second all."""
    boxes = np.tile(np.linspace(0, 0.9, 6, dtype=np.float32)[:, np.newaxis], [2, 1, 4])
    boxes[..., 2:] += 0.05
    scores = np.full([2, 6, 1], -5, np.float32)
    scores[0, 0], scores[1, :, 0] = 0.9, np.linspace(0.9, 0.4, 6)
    config = BatchNonMaxSuppression(max_detections_per_class=20, max_total_detections=20, soft_nms_sigma=0.5)
    assert select(config, boxes, scores).num_selected_B.numpy().tolist() == [1, 6]


@pytest.mark.parametrize("nums_of_pairs", [(8, 64), (512,), ()])
def test_ties_of_all_scores_are_ordered_by_class_and_box(nums_of_pairs, monkeypatch):
    monkeypatch.setattr(nms, "_NUMS_OF_PAIRS", nums_of_pairs)
    boxes, scores = crowd(40, 3, seed=3)
    config = BatchNonMaxSuppression(iou_threshold=0.4, max_detections_per_class=30, max_total_detections=30)
    equal = np.full_like(scores, 0.5)
    assert_as_defined(select(config, boxes, equal), config, boxes, equal)


def test_more_boxes_outside_the_window_than_there_is_room_for_are_looked_at_again():
    """200 boxes without overlap lie outside; there is room for 3 visible boxes and a block of 128."""
    place = np.arange(202, dtype=np.float32)[:, np.newaxis]
    boxes = np.concatenate([place * 0 - 0.2, place, place * 0 - 0.1, place + 0.5], axis=1)[np.newaxis]
    boxes[0, 200:] = [[0, 0, 0.1, 0.1], [0.5, 0.5, 0.6, 0.6]]
    scores = np.linspace(1, 0.5, 202, dtype=np.float32)[np.newaxis, :, np.newaxis]
    config = BatchNonMaxSuppression(max_detections_per_class=300, max_total_detections=300)
    three = replace(config, max_detections_per_class=3, max_total_detections=3)
    assert select(config, boxes, scores).box_indices_BM[0, :2].numpy().tolist() == [200, 201]
    selection = select(three, boxes, scores)
    assert selection.num_selected_B.numpy().tolist() == [0]  # three boxes outside are the limit of the class
    many_classes = np.diag(scores[0, :, 0])[np.newaxis]  # each box has a class of its own
    selection = select(three, boxes, many_classes)
    assert selection.num_selected_B.numpy().tolist() == [2]
    assert selection.box_indices_BM[0, :2].numpy().tolist() == [200, 201]


def test_a_box_outside_the_window_suppresses_and_counts_but_is_not_reported():
    # The first lies outside the window and overlaps the second by 0.15 x 0.2 of 0.25 x 0.2: 0.6.
    boxes = [[[0.0, 1.0, 0.2, 1.2], [0.0, 0.95, 0.2, 1.15], [0.5, 0.5, 0.7, 0.7], [0.0, 0.0, 0.2, 0.2]]]
    scores = [[[0.9], [0.8], [0.7], [0.6]]]
    config = BatchNonMaxSuppression(iou_threshold=0.5, max_detections_per_class=2, max_total_detections=5)
    selection = select(config, boxes, scores)
    np.testing.assert_array_equal(selection.num_selected_B, [1])
    np.testing.assert_array_equal(selection.box_indices_BM[0], [2, 0, 0, 0, 0])


def test_a_large_image_of_few_places_needs_more_than_the_first_pairs():
    """Six places, 1,500 boxes, 2 classes: the best 512 pairs hold fewer than 100 that survive."""
    boxes, scores = crowd(1500, 2, seed=9)
    config = BatchNonMaxSuppression(iou_threshold=0.3)
    selection = select(config, boxes, scores)
    assert_as_defined(selection, config, boxes, scores)
    first = np.sort(scores.reshape(2, -1), axis=1)[:, -512]
    assert np.all(selection.scores_BM.numpy().min(axis=1) < first)


@pytest.mark.parametrize(("factor", "sigma"), [(np.nan, 0.0), (0.5, 0.0), (0.5, 0.5)])
def test_nan_scores_and_scores_below_the_threshold_give_no_detections(factor, sigma):
    boxes, scores = crowd(20, 2, seed=0)
    config = BatchNonMaxSuppression(score_threshold=0.9, soft_nms_sigma=sigma)
    np.testing.assert_array_equal(select(config, boxes, scores * np.float32(factor)).num_selected_B, [0, 0])


def test_a_batch_may_be_empty():
    config = BatchNonMaxSuppression(max_detections_per_class=3, max_total_detections=3)
    assert select(config, np.zeros([0, 20, 4]), np.zeros([0, 20, 2])).scores_BM.shape == (0, 3)
