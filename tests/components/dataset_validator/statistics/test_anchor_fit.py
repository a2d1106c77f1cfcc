"""The fit of anchors to boxes, and suggestions of better anchors."""

import json
import pickle

import numpy as np
import pytest

from detloom.components.dataset_validator.statistics.anchor_fit import (
    AnchorFit,
    is_supported,
    suggest_anchors,
)
from detloom.components.dataset_validator.statistics.model_input import best_anchor_iou
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.detector import MultiscaleAnchorGenerator, SsdAnchorGenerator

GENERATOR = MultiscaleAnchorGenerator(aspect_ratios=(1.0,), min_level=3, max_level=3, scales_per_octave=1)
LABEL_MAP = LabelMap.from_names(["cat", "dog"])
INPUT_HW = (64, 64)
ANCHOR = (4.0, 4.0, 36.0, 36.0)  # 32 x 32 around (20, 20), an anchor centre of stride 8
SMALL = (16.0, 16.0, 24.0, 24.0)  # 8 x 8 within it: IoU 64 / 1024


def images(number, seed=0):
    """Yield (record key, boxes, class ids) with sizes whose sums are not exact in floating point."""
    rng = np.random.default_rng(seed)
    for i in range(number):
        corners = rng.uniform(0, 30, (5, 2))
        boxes = np.concatenate([corners, corners + rng.uniform(1, 30, (5, 2))], axis=1)
        yield f"img_{i}", boxes.astype(np.float32), rng.integers(1, 3, 5)


def fit_of(data):
    fit = AnchorFit(GENERATOR)
    for key, boxes, class_ids in data:
        fit.add(key, boxes, class_ids, INPUT_HW)
    return fit


def test_results_are_listed_by_class_size_and_iou():
    fit = fit_of([("img", np.array([ANCHOR, SMALL]), np.array([1, 2]))])
    found = fit.to_dict(LABEL_MAP)
    assert fit.total() == {"num_boxes": 2, "recall_at_50": 0.5, "mean_best_iou": (1 + 1 / 16) / 2}
    assert [(row["name"], row["recall_at_50"]) for row in found["by_class"]] == [("cat", 1.0), ("dog", 0.0)]
    assert [(row["size_px"], row["recall_at_50"]) for row in found["by_size"]] == [("8-16", 0.0), ("32-64", 1.0)]
    counts = found["histogram"]["counts"]
    assert (counts[1], counts[19], sum(counts)) == (1, 1, 2)  # 1 / 16 = 0.0625; 1.0 belongs to the last bin


def test_merged_parts_equal_the_whole_at_a_bounded_size():
    data = list(images(1000))  # more boxes than the sample and than the buffer
    parts = [fit_of(data[i::3]) for i in range(3)]
    merged = AnchorFit(GENERATOR)
    for part in reversed(parts):
        merged.merge(pickle.loads(pickle.dumps(part)))
    assert merged.to_dict(LABEL_MAP) == fit_of(data).to_dict(LABEL_MAP)
    assert len(pickle.dumps(merged)) < 100_000  # bounded: the data have twice as many boxes as the sample


def test_without_boxes_there_are_no_rates_and_no_suggestion():
    fit = fit_of([("img", np.zeros((0, 4)), np.zeros(0))])
    assert fit.total() == {"num_boxes": 0, "recall_at_50": None, "mean_best_iou": None}
    assert fit.to_dict(LABEL_MAP)["suggestion"] is None


def test_only_anchors_that_fit_badly_get_a_suggestion():
    fits, misses = (fit_of([("img", np.array([box] * 10), np.ones(10))]) for box in (ANCHOR, SMALL))
    assert fits.to_dict(LABEL_MAP)["suggestion"] is None
    found = misses.to_dict(LABEL_MAP)
    better = found["suggestion"]
    assert better["recall_at_50"] > better["configured_recall_at_50"] == 0.0
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_supported_generators():
    assert is_supported(GENERATOR)
    assert not is_supported(SsdAnchorGenerator(aspect_ratios=(1.0,)))


def boxes_at(shapes_hw, input_side=320, seed=0):
    """Return boxes of these shapes at random positions."""
    shapes = np.asarray(shapes_hw, np.float64)
    corners = np.random.default_rng(seed).uniform(0, 1, shapes.shape) * (input_side - shapes)
    return np.concatenate([corners, corners + shapes], axis=1)


def test_small_boxes_get_small_anchors():
    configured = MultiscaleAnchorGenerator(aspect_ratios=(0.5, 1.0, 2.0))  # smallest side 4 * 8 = 32 px
    boxes = boxes_at([[20, 20]] * 200)
    suggestion = suggest_anchors(configured, boxes, np.full((200, 2), 320), 0.5)
    assert suggestion.configured_fit.recall == 0.0  # 400 / 32**2 at best
    assert suggestion.fit.recall > 0.9
    assert suggestion.generator.anchor_scale < 3


def test_a_suggestion_keeps_the_levels_and_the_maximum_number_of_anchors():
    configured = MultiscaleAnchorGenerator(aspect_ratios=(0.5, 1.0), scales_per_octave=2, min_level=4, max_level=6)
    shapes = np.random.default_rng(5).uniform(8, 150, (300, 2))
    generator = suggest_anchors(configured, boxes_at(shapes), np.full((300, 2), 320), 0.5).generator
    assert len(generator.aspect_ratios) * generator.scales_per_octave <= 4
    assert (generator.min_level, generator.max_level) == (4, 6)


@pytest.mark.parametrize("seed", range(2))
def test_a_suggestion_is_never_worse_than_the_configured_anchors(seed):
    configured = MultiscaleAnchorGenerator(aspect_ratios=(0.5, 1.0, 2.0))
    rng = np.random.default_rng(seed)
    boxes = boxes_at(np.exp(rng.normal(3.5, 0.8, (1500, 2))).clip(2, 300), seed=seed)
    hw = np.full((1500, 2), 320)
    suggestion = suggest_anchors(configured, boxes, hw, 0.5)
    ious = best_anchor_iou(suggestion.generator, boxes, hw)
    assert suggestion.fit.mean_iou == pytest.approx(ious.mean())
    assert suggestion.fit.recall >= suggestion.configured_fit.recall
    assert suggestion.fit.mean_iou >= suggestion.configured_fit.mean_iou
