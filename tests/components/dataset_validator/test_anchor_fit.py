import json
import pickle

import numpy as np
import pytest

from detloom.components.dataset_validator.anchor_fit import SAMPLE_SIZE, AnchorFit, is_supported
from detloom.schemas.label_map import LabelMap
from detloom.schemas.model_config import MultiscaleAnchorGenerator, SsdAnchorGenerator

GENERATOR = MultiscaleAnchorGenerator(aspect_ratios=(1.0,), min_level=3, max_level=3, scales_per_octave=1)
LABEL_MAP = LabelMap.from_names(["cat", "dog"])
INPUT_HW = (64, 64)
ANCHOR = (4.0, 4.0, 36.0, 36.0)  # 32 x 32 around (20, 20), a place of stride 8
SMALL = (16.0, 16.0, 24.0, 24.0)  # 8 x 8 within it: IoU 64 / 1024


def pictures(number, seed=0):
    """(record key, boxes, class ids) with sizes that no float sum is exact for."""
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


def test_recall_and_mean_are_those_of_the_boxes():
    fit = fit_of([("img", np.array([ANCHOR, SMALL]), np.array([1, 2]))])
    assert fit.total() == {"num_boxes": 2, "recall_at_50": 0.5, "mean_best_iou": (1 + 1 / 16) / 2}


def test_the_worst_class_and_size_can_be_told():
    found = fit_of([("img", np.array([ANCHOR, SMALL]), np.array([1, 2]))]).to_dict(LABEL_MAP)
    assert [(row["name"], row["recall_at_50"]) for row in found["by_class"]] == [("cat", 1.0), ("dog", 0.0)]
    assert [(row["size_px"], row["recall_at_50"]) for row in found["by_size"]] == [("8-16", 0.0), ("32-64", 1.0)]


def test_the_histogram_counts_each_box_once():
    counts = fit_of([("img", np.array([ANCHOR, SMALL]), np.array([1, 2]))]).to_dict(LABEL_MAP)["histogram"]["counts"]
    assert (counts[1], counts[19], sum(counts)) == (1, 1, 2)  # 1 / 16 = 0.0625; 1.0 belongs to the last bin


@pytest.mark.parametrize("num_parts", [2, 7])
def test_parts_in_any_order_give_what_one_reading_gives(num_parts):
    data = list(pictures(1000))  # more boxes than the sample and than are gathered at once
    parts = [fit_of(data[i::num_parts]) for i in range(num_parts)]
    merged = AnchorFit(GENERATOR)
    for part in reversed(parts):
        merged.merge(pickle.loads(pickle.dumps(part)))
    assert merged.to_dict(LABEL_MAP) == fit_of(data).to_dict(LABEL_MAP)


def test_its_size_does_not_grow_with_the_data():
    fit = fit_of(pictures(1500))
    assert fit.to_dict(LABEL_MAP)["shapes"]["num_sampled"] == SAMPLE_SIZE
    assert len(pickle.dumps(fit)) < 100_000


def test_without_boxes_there_are_no_rates_and_no_suggestion():
    fit = fit_of([("img", np.zeros((0, 4)), np.zeros(0))])
    found = fit.to_dict(LABEL_MAP)
    assert fit.total() == {"num_boxes": 0, "recall_at_50": None, "mean_best_iou": None}
    assert (found["shapes"], found["suggestion"]) == (None, None)


def test_anchors_that_fit_need_no_suggestion():
    found = fit_of([("img", np.array([ANCHOR] * 10), np.ones(10))]).to_dict(LABEL_MAP)
    assert found["suggestion"] is None


def test_a_suggestion_says_what_it_gains():
    better = fit_of([("img", np.array([SMALL] * 10), np.ones(10))]).to_dict(LABEL_MAP)["suggestion"]
    assert better["configured_recall_at_50"] == 0.0
    assert better["recall_at_50"] > better["configured_recall_at_50"]


def test_the_description_is_plain_json():
    found = fit_of(pictures(10)).to_dict(LABEL_MAP)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_only_generators_that_training_builds_are_supported():
    assert is_supported(GENERATOR)
    assert not is_supported(SsdAnchorGenerator(aspect_ratios=(1.0,)))
