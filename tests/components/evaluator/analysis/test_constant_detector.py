from dataclasses import replace

import numpy as np
import pytest

from detloom.components.evaluator import baseline_comparison as comparison
from detloom.components.evaluator.analysis.constant_detector import constant_detections
from detloom.components.evaluator.baseline_comparison import compare_with_constant
from detloom.components.evaluator.measurements import Split, measure
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.run_file.evaluator import EvaluatorSettings
from detloom.schemas.run_file.gates import BaselineGate
from detloom.trainer_module.evaluation.coco_images import ImageDetections, ImageGroundTruth
from detloom.trainer_module.evaluation.coco_metrics import compute_coco_metrics

LABEL_MAP = LabelMap.from_names(["cat", "dog"])
GATE = BaselineGate(num_resamples=200)


def image(image_id, boxes, class_ids, image_hw=(100, 200)):
    return ImageGroundTruth(
        image_id=image_id,
        image_hw=image_hw,
        boxes_yxyx_rel=np.reshape(boxes, (-1, 4)),
        class_ids=np.array(class_ids, int),
        is_crowd=np.zeros(len(class_ids), bool),
    )


def scattered(num_images=40, seed=0):
    """Return images with one box of each class at random places."""
    corners = np.random.default_rng(seed).uniform(0, 0.8, (num_images, 2, 2))
    boxes = np.concatenate([corners, corners + 0.2], axis=-1)
    return [image(i, pair, [1, 2]) for i, pair in enumerate(boxes, start=1)]


def detections(truth, boxes_of, score=0.9):
    return [
        ImageDetections(
            image_id=each.image_id,
            boxes_yxyx_rel=boxes_of(each),
            scores=np.full(len(each.class_ids), score),
            class_ids=each.class_ids,
        )
        for each in truth
    ]


def gain_of(truth, found):
    split = Split(ground_truth=truth, features=[{}] * len(truth), label_map=LABEL_MAP)
    return compare_with_constant(measure(split, found, EvaluatorSettings()), found, split, GATE)


def constant_in_each(truth):
    found = constant_detections(truth, LABEL_MAP)
    return [replace(found, image_id=each.image_id) for each in truth]


def test_a_box_at_the_same_place_in_all_images_is_found():
    place = (0.2, 0.2, 0.6, 0.5)
    truth = [image(i, [place, (0.7, 0.1 * i, 0.9, 0.1 * i + 0.1)], [1, 2]) for i in range(1, 9)]
    found = constant_in_each(truth)
    cats = [each.boxes_yxyx_rel[each.class_ids == 1] for each in found]
    assert all(np.allclose(boxes, [place]) for boxes in cats)
    assert compute_coco_metrics(truth, found, LABEL_MAP).AP50 > 0.5


def test_boxes_are_chosen_until_they_match_all_objects_and_rank_by_the_objects_they_match():
    left, right = (0.1, 0.1, 0.4, 0.4), (0.1, 0.6, 0.4, 0.9)
    truth = [image(i, [right if i < 4 else left], [1]) for i in range(1, 11)]
    found = constant_detections(truth, LABEL_MAP)
    np.testing.assert_allclose(found.boxes_yxyx_rel, [left, right])
    np.testing.assert_allclose(found.scores, [0.7, 0.3])


def test_a_model_that_finds_objects_is_better():
    truth = scattered()
    gain = gain_of(truth, detections(truth, lambda each: each.boxes_yxyx_rel))
    assert gain.low > 0.5


def test_in_a_large_split_evenly_spaced_images_are_compared(monkeypatch):
    truth = scattered()
    found = detections(truth, lambda each: each.boxes_yxyx_rel)
    part = gain_of(truth[::4], found[::4])
    num_constant = len(constant_detections(truth, LABEL_MAP).scores)
    # Of 40 images every fourth; the boxes are still chosen among those of all images.
    monkeypatch.setattr(comparison, "_MAX_CONSTANT", 10 * num_constant)
    assert gain_of(truth, found).value == pytest.approx(part.value, abs=0.2)
    assert gain_of(truth, found).low > 0.5


@pytest.mark.parametrize("kind", ["the constant detector", "boxes of other images", "nothing"])
def test_a_model_that_ignores_the_image_is_not_better(kind):
    truth = scattered()
    if kind == "the constant detector":
        found = constant_in_each(truth)
    else:
        others = scattered(seed=1) if kind == "boxes of other images" else [image(i, [], []) for i in range(1, 41)]
        found = detections(others, lambda each: each.boxes_yxyx_rel)
    assert gain_of(truth, found).low <= 0


@pytest.mark.parametrize("truth", [[], [image(1, [], [])]])
def test_without_objects_nothing_is_chosen(truth):
    assert len(constant_detections(truth, LABEL_MAP).scores) == 0
