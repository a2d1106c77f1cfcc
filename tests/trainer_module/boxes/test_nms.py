import itertools
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.model.detector import BatchNonMaxSuppression
from detloom.trainer_module.boxes import nms

WHOLE = (0.0, 0.0, 1.0, 1.0)


def overlap(one, other):
    height = max(min(one[2], other[2]) - max(one[0], other[0]), 0)
    width = max(min(one[3], other[3]) - max(one[1], other[1]), 0)
    areas = ((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return height * width / (sum(areas) - height * width)


def one_pair_after_the_other(config, boxes, scores, window):
    """The definition: within each class on its own, over all boxes; then the best of all classes that can be seen."""
    kept = []
    for class_index in range(scores.shape[1]):
        left, taken = dict(enumerate(scores[:, class_index].astype(float))), []
        while left and len(taken) < config.max_detections_per_class:
            best = max(left, key=lambda i: (left[i], -i))
            score = left.pop(best)
            if score <= config.score_threshold:
                break
            taken.append((-score, class_index, best))
            for i in list(left):
                iou = overlap(boxes[best], boxes[i])
                if config.soft_nms_sigma:
                    left[i] *= np.exp(-(iou**2) / (2 * config.soft_nms_sigma))
                elif iou > config.iou_threshold:
                    del left[i]
        kept += taken
    clipped = np.clip(boxes, np.tile(window[:2], 2), np.tile(window[2:], 2))
    seen = [each for each in sorted(kept) if np.prod(clipped[each[2], 2:] - clipped[each[2], :2]) > 0]
    return [(box, class_index, -score) for score, class_index, box in seen[: config.max_total_detections]]


def select(config, boxes_BN4, scores_BNK, window=WHOLE, *, jit_compile=False):
    windows = tf.constant([window] * len(scores_BNK), tf.float32)

    @tf.function(autograph=False, jit_compile=jit_compile)
    def run(boxes, scores):
        return nms.select_boxes(
            config, scores, tf.identity, lambda indices: tf.gather(boxes, indices, batch_dims=1), windows
        )

    return run(tf.constant(boxes_BN4, tf.float32), tf.constant(scores_BNK, tf.float32))


def crowd(num_boxes, num_classes, seed, num_places=6):
    """Boxes of two images around a few places, also beyond the window, so that most overlap many."""
    rng = np.random.default_rng(seed)
    centers = rng.uniform(-0.2, 1.2, (2, num_places, 2))[:, rng.integers(0, num_places, num_boxes)]
    centers += rng.normal(0, 0.04, centers.shape)
    sizes = rng.uniform(0.15, 0.3, (2, num_boxes, 2))
    boxes = np.concatenate([centers - sizes / 2, centers + sizes / 2], axis=-1).astype(np.float32)
    return boxes, rng.uniform(0, 1, (2, num_boxes, num_classes)).round(2).astype(np.float32)  # rounded: many tie


def assert_as_defined(config, boxes, scores, window=WHOLE, *, jit_compile=False):
    selection = select(config, boxes, scores, window, jit_compile=jit_compile)
    for i in range(len(boxes)):
        expected = one_pair_after_the_other(config, boxes[i], scores[i], np.array(window))
        count = int(selection.num_selected_B[i])
        found = list(
            zip(
                selection.box_indices_BM[i, :count].numpy().tolist(),
                selection.class_indices_BM[i, :count].numpy().tolist(),
                strict=True,
            )
        )
        assert found == [(box, class_index) for box, class_index, _ in expected]
        np.testing.assert_allclose(selection.scores_BM[i, :count], [score for *_, score in expected], rtol=1e-5)
        assert not np.any(selection.scores_BM[i, count:])
    return selection


SETTINGS = {
    "plenty": {"max_detections_per_class": 20, "max_total_detections": 20},
    "few of a class": {"max_detections_per_class": 2, "max_total_detections": 20},
    "more than there are": {"max_detections_per_class": 200, "max_total_detections": 200},
    "a threshold": {"max_detections_per_class": 20, "max_total_detections": 20, "score_threshold": 0.9},
    "soft": {"max_detections_per_class": 20, "max_total_detections": 20, "soft_nms_sigma": 0.5},
    "soft, few of a class": {"max_detections_per_class": 2, "max_total_detections": 20, "soft_nms_sigma": 0.2},
}


@pytest.mark.parametrize(
    ("name", "nums_of_pairs", "jit_compile"),
    [
        *itertools.product(SETTINGS, [(8, 64), (512,), ()], [False]),
        *[(name, (8, 64), True) for name in SETTINGS],
    ],
)
def test_result_equals_suppression_of_each_class_over_all_boxes(name, nums_of_pairs, jit_compile, monkeypatch):
    """512 pairs are enough; 8 and 64 are not, so that all pairs are looked at. Blocks have 16 pairs."""
    monkeypatch.setattr(nms, "_NUMS_OF_PAIRS", nums_of_pairs)
    monkeypatch.setattr(nms, "_BLOCK", 16)
    config = BatchNonMaxSuppression(iou_threshold=0.4, **SETTINGS[name])
    boxes, scores = crowd(60, 3, seed=8)
    if config.soft_nms_sigma:  # no ties: there the order of lowered scores hangs on rounding
        scores = (
            np.random.default_rng(1).permutation(scores.size).reshape(scores.shape).astype(np.float32) / scores.size
        )
    assert_as_defined(config, boxes, scores, (0.0, 0.0, 0.75, 1.0), jit_compile=jit_compile)


@pytest.mark.parametrize("nums_of_pairs", [(8, 64), (512,), ()])
def test_ties_of_all_scores_are_ordered_by_class_and_box(nums_of_pairs, monkeypatch):
    monkeypatch.setattr(nms, "_NUMS_OF_PAIRS", nums_of_pairs)
    boxes, scores = crowd(40, 3, seed=3)
    config = BatchNonMaxSuppression(iou_threshold=0.4, max_detections_per_class=30, max_total_detections=30)
    assert_as_defined(config, boxes, np.full_like(scores, 0.5))


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
    many_classes = np.zeros([1, 202, 202], np.float32)  # each box has a class of its own
    many_classes[0, range(202), range(202)] = scores[0, :, 0]
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
    selection = assert_as_defined(config, boxes, scores)
    first = np.sort(scores.reshape(2, -1), axis=1)[:, -512]
    assert np.all(selection.scores_BM.numpy().min(axis=1) < first)


def test_nan_scores_give_no_detections():
    boxes, scores = crowd(20, 2, seed=0)
    selection = select(BatchNonMaxSuppression(), boxes, np.full_like(scores, np.nan))
    np.testing.assert_array_equal(selection.num_selected_B, [0, 0])


def test_it_runs_eagerly_and_on_an_empty_batch():
    config = BatchNonMaxSuppression(max_detections_per_class=3, max_total_detections=3)
    boxes, scores = (tf.constant(part) for part in crowd(20, 2, seed=0))
    for count in (0, 2):
        selection = nms.select_boxes(
            config,
            scores[:count],
            tf.identity,
            lambda indices, count=count: tf.gather(boxes[:count], indices, batch_dims=1),
            tf.constant([WHOLE] * 2, tf.float32)[:count],
        )
        assert selection.scores_BM.shape == (count, 3)


@pytest.mark.parametrize("sigma", [0.0, 0.5])
@pytest.mark.parametrize("is_eager", [True, False])
def test_scores_below_the_threshold_give_no_detections(sigma, is_eager):
    boxes, scores = crowd(20, 2, seed=0)
    config = BatchNonMaxSuppression(score_threshold=0.9, soft_nms_sigma=sigma)
    tf.config.run_functions_eagerly(is_eager)
    try:
        selection = select(config, boxes, scores * 0.5)
    finally:
        tf.config.run_functions_eagerly(False)
    np.testing.assert_array_equal(selection.num_selected_B, [0, 0])
