"""Statistics of a split: counts, histograms, affected records, merging."""

import math

import numpy as np
import pytest

from detloom.components.dataset_validator.statistics import split_statistics
from detloom.components.dataset_validator.statistics.model_input import ModelInput
from detloom.components.dataset_validator.statistics.pass_result import plain_statistics
from detloom.components.dataset_validator.statistics.split_statistics import (
    MAX_OFFENDERS,
    OTHER_ID,
    BoxLimits,
    Histogram,
    ImageLabels,
    SplitStatistics,
)
from detloom.schemas.model.detector import MultiscaleAnchorGenerator
from detloom.schemas.model.network import FixedShapeResizer

KNOWN = frozenset({1, 2})
NO_MODEL = BoxLimits()
HALF_SIZE = ModelInput(  # 50 x 100 px
    image_resizer=FixedShapeResizer(height=50, width=100),
    anchor_generator=MultiscaleAnchorGenerator(aspect_ratios=(1.0,)),
    max_boxes=2,
)


def make_labels(key, boxes, class_ids, image_hw=(100, 200), crowds=None):
    return ImageLabels(
        record_key=key,
        image_hw=image_hw,
        boxes_yxyx_rel_N4=np.array(boxes, np.float64).reshape(-1, 4),
        class_ids_N=np.array(class_ids, np.int64),
        is_crowd_N=np.array(crowds if crowds is not None else [0] * len(class_ids), bool),
    )


def make(*images, limits=NO_MODEL):
    """Return the statistics of (key, boxes, class ids) on images of 100x200 px."""
    statistics = SplitStatistics()
    for image in images:
        statistics.update(make_labels(*image), KNOWN, limits)
    return statistics


def filled(histogram):
    """Return the non-empty bins by name."""
    return {
        name: count for name, count in zip(histogram.bin_names(), histogram.counts_Q.tolist(), strict=True) if count
    }


@pytest.mark.parametrize(
    ("box", "problem"),
    [
        ((0, 0, 1, 1), None),
        ((0.2, 0.2, 0.3, 0.3), None),
        ((math.nan, 0, 1, 1), "not finite"),
        ((0, 0, math.inf, 1), "not finite"),
        ((0.5, 0, 0.4, 1), "inverted"),
        ((0, 0.5, 1, 0.4), "inverted"),
        ((0.5, 0, 0.5, 1), "without area"),
        ((-0.1, 0, 1, 1), "outside 0 to 1"),
        ((0, 0, 1, 1.1), "outside 0 to 1"),
    ],
)
def test_box_problems_are_distinguished(box, problem):
    statistics = make(("a", [box, (0, 0, 1, 1)], [1, 2]))
    assert list(statistics.box_problems) == ([problem] if problem else [])
    assert statistics.num_sound_boxes == (1 if problem else 2)


def test_boxes_and_images_are_counted_by_class():
    box = (0, 0, 1, 1)
    statistics = make(
        ("a", [(0, 0, 0.5, 0.5), box], [1, 1]), ("b", [box] * 4, [2] * 4), ("c", [], []), ("d", [box] * 5, [1] * 5)
    )
    assert (statistics.num_examples, statistics.num_boxes, statistics.num_without_boxes) == (4, 11, 1)
    assert statistics.boxes_by_class_id == {1: 7, 2: 4}
    assert statistics.images_by_class_id == {1: 2, 2: 1}
    assert filled(statistics.boxes_per_image) == {"0": 1, "2-4": 2, "5-9": 1}


def test_boxes_are_measured_in_the_image_and_after_resizing():
    # 0.17 * 100 px high, 0.32 * 200 px wide: sqrt(17 * 64) = 33 px; 0.0544 of the image; 64 / 17 = 3.8.
    # Resized to 50 x 100 px: 0.17 * 50 = 8.5 px high, 32 px wide, sqrt(272) = 16.5 px.
    statistics = make(("a", [(0, 0, 0.17, 0.32)], [1]), limits=BoxLimits(model_input=HALF_SIZE))
    assert filled(statistics.box_sizes_px) == {"32-64": 1}
    assert filled(statistics.box_areas_rel) == {"1/32-1/16": 1}
    assert filled(statistics.box_aspect_ratios) == {"2-4": 1}
    assert filled(statistics.box_sides_input_px) == {"8-16": 1}
    assert filled(statistics.box_sizes_input_px) == {"16-32": 1}


def test_images_are_measured_by_their_longer_side_and_shape():
    statistics = SplitStatistics()
    for key, image_hw in (("a", (100, 200)), ("b", (300, 150))):
        statistics.update(make_labels(key, [], [], image_hw), KNOWN)
    assert filled(statistics.image_sizes_px) == {"128-256": 1, "256-512": 1}
    assert filled(statistics.image_aspect_ratios) == {"2-4": 1, "1/2-0.8": 1}
    assert (statistics.min_hw, statistics.max_hw) == ((100, 150), (300, 200))


def test_centres_fall_into_the_cells_of_a_grid():
    # Centres at (0.5, 0.5) and, in the last cell, at (1 - 0.005, 1 - 0.005).
    statistics = make(("a", [(0, 0, 1, 1), (0.99, 0.99, 1, 1)], [1, 1]))
    grid = statistics.positions.counts_Q.reshape(8, 8)
    assert (grid[4, 4], grid[7, 7], grid.sum()) == (1, 1, 2)


def test_tiny_huge_and_crowded_boxes_are_found():
    # After resizing to 50 x 100 px: 2.5 px high; 0.96 of the input; the third box makes the image crowded.
    boxes = [(0, 0, 0.05, 0.5), (0, 0, 0.98, 0.98), (0.5, 0.5, 0.9, 0.9)]
    statistics = make(("a", boxes, [1, 1, 2]), limits=BoxLimits(model_input=HALF_SIZE))
    found = {check: offenders.count for check, offenders in statistics.findings.items()}
    assert found == {"tiny_boxes": 1, "huge_boxes": 1, "crowded_images": 1}
    assert statistics.findings["tiny_boxes"].record_keys == ["a"]


def test_duplicate_boxes_are_found_within_a_class_only():
    box, almost = (0, 0, 0.5, 0.5), (0, 0, 0.5, 0.49)
    assert make(("a", [box, almost], [1, 1])).findings["overlapping_boxes"].count == 1
    assert make(("a", [box, almost], [1, 2])).findings == {}


def test_crowds_are_not_objects():
    statistics = SplitStatistics()
    problems = statistics.update(
        make_labels("a", [(0, 0, 1, 1)] * 3, [1] * 3, crowds=[0, 1, 1]), KNOWN, BoxLimits(model_input=HALF_SIZE)
    )
    assert problems == ("huge_boxes",)
    assert (statistics.num_boxes, statistics.num_objects, statistics.num_crowd) == (3, 1, 2)
    assert statistics.findings["huge_boxes"].count == 1


def test_update_returns_the_affected_checks():
    problems = SplitStatistics().update(make_labels("a", [(0.5, 0, 0.4, 1), (0, 0, 1, 1)], [1, 9]), KNOWN)
    assert problems == ("class_ids", "boxes")


def test_the_kept_record_keys_do_not_depend_on_order():
    images = [(f"img_{index:03d}", [(0.5, 0, 0.4, 1)], [9]) for index in range(30)]
    forwards, backwards = make(*images), make(*images[::-1])
    expected = [f"img_{index:03d}" for index in range(MAX_OFFENDERS)]
    for statistics in (forwards, backwards):
        assert statistics.box_problems["inverted"].count == 30
        assert statistics.box_problems["inverted"].record_keys == expected
        assert statistics.class_id_offenders[9].record_keys == expected


def test_only_the_lowest_of_many_unknown_ids_are_counted_individually(monkeypatch):
    monkeypatch.setattr(split_statistics, "MAX_UNKNOWN_IDS", 2)
    images = [(f"img_{class_id}", [(0, 0, 1, 1)] * 2, [class_id, 1]) for class_id in (7, 3, 9, 5, 3)]
    forwards, parts = make(*images), [make(image) for image in images[::-1]]
    for part in parts[1:]:
        parts[0].merge(part)
    for statistics in (forwards, parts[0]):
        counts = {class_id: offenders.count for class_id, offenders in statistics.class_id_offenders.items()}
        assert counts == {3: 2, OTHER_ID: 3}  # OTHER_ID is one of the two entries
        assert statistics.boxes_by_class_id == {1: 5, 3: 2, OTHER_ID: 3}


def test_merged_parts_equal_the_whole():
    images = [("a", [(0, 0, 1, 1)], [1]), ("b", [(0.5, 0, 0.4, 1)], [9]), ("c", [], []), ("d", [(0, 0, 0.1, 0.1)], [2])]
    whole, left, right = make(*images), make(*images[:2]), make(*images[2:])
    left.add_unreadable("x")
    whole.add_unreadable("x")
    right.merge(left)
    empty = SplitStatistics()
    empty.merge(whole)
    expected = plain_statistics(whole)
    whole.merge(SplitStatistics())
    assert plain_statistics(right) == plain_statistics(empty) == plain_statistics(whole) == expected


def test_an_edge_belongs_to_the_bin_above_for_sizes_and_below_for_counts():
    sizes, counts = Histogram((8, 16)), Histogram((0, 1, 4), is_count=True)
    sizes.add(np.array([0, 7.9, 8, 16, 100]))
    sizes.add(np.zeros(0))
    for value in (0, 1, 2, 4, 5):
        counts.add_one(value)
    assert sizes.to_dict("px") == {"bins": ["0-8", "8-16", "16+"], "counts": [2, 1, 2], "unit": "px"}
    assert counts.to_dict("boxes") == {"bins": ["0", "1", "2-4", "5+"], "counts": [1, 1, 2, 1], "unit": "boxes"}


def test_bin_names_are_readable():
    expected = ["0-1/8", "1/8-0.8", "0.8-1.25", "1.25-2", "2-8192", "8192+"]
    assert Histogram((0.125, 0.8, 1.25, 2, 8192)).bin_names() == expected
