"""Statistics: counts, offenders, merging."""

import math

import numpy as np
import pytest

from detloom.components.dataset_validator.split_statistics import (
    BOX_COUNT_EDGES,
    BOX_SIZE_EDGES_PX,
    MAX_OFFENDERS,
    SplitStatistics,
    bin_names,
    find_box_problem,
)

KNOWN = frozenset({1, 2})


def make(*images):
    """Statistics of (key, boxes, class ids) on 100x200 px images."""
    statistics = SplitStatistics()
    for key, boxes, class_ids in images:
        statistics.update(key, (100, 200), np.array(boxes, np.float32).reshape(-1, 4), np.array(class_ids), KNOWN)
    return statistics


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
def test_each_box_problem_is_told_from_the_others(box, problem):
    assert find_box_problem(np.array(box)) == problem


def test_boxes_and_images_are_counted_by_class():
    statistics = make(("a", [(0, 0, 0.5, 0.5), (0, 0, 1, 1)], [1, 1]), ("b", [(0, 0, 1, 1)], [2]), ("c", [], []))
    assert (statistics.num_examples, statistics.num_boxes, statistics.num_without_boxes) == (3, 3, 1)
    assert statistics.boxes_by_class_id == {1: 2, 2: 1}
    assert statistics.images_by_class_id == {1: 1, 2: 1}


def test_the_size_of_a_box_is_counted_in_pixels():
    # 0.17 * 100 px high, 0.32 * 200 px wide: sqrt(17 * 64) = 33 px.
    statistics = make(("a", [(0, 0, 0.17, 0.32)], [1]))
    names = bin_names(BOX_SIZE_EDGES_PX, is_count=False)
    assert [names[index] for index in statistics.box_sizes] == ["32-64"]


def test_the_bins_are_named_by_their_edges():
    assert bin_names(BOX_COUNT_EDGES, is_count=True) == ["0", "1", "2-4", "5-9", "10-19", "20-49", "50-99", "100+"]
    assert bin_names(BOX_SIZE_EDGES_PX, is_count=False)[-1] == "512+"


def test_boxes_per_image_fall_into_their_bins():
    box = (0, 0, 1, 1)
    statistics = make(("a", [], []), ("b", [box], [1]), ("c", [box] * 4, [1] * 4), ("d", [box] * 5, [1] * 5))
    assert statistics.box_counts == {0: 1, 1: 1, 2: 1, 3: 1}


def test_the_first_offenders_are_kept_whatever_the_order():
    images = [(f"img_{index:03d}", [(0.5, 0, 0.4, 1)], [9]) for index in range(30)]
    forwards, backwards = make(*images), make(*images[::-1])
    expected = [f"img_{index:03d}" for index in range(MAX_OFFENDERS)]
    for statistics in (forwards, backwards):
        assert statistics.box_problems["inverted"].count == 30
        assert statistics.box_problems["inverted"].record_keys == expected
        assert statistics.class_id_offenders[9].record_keys == expected


def test_merging_parts_equals_counting_the_whole():
    images = [("a", [(0, 0, 1, 1)], [1]), ("b", [(0.5, 0, 0.4, 1)], [9]), ("c", [], []), ("d", [(0, 0, 0.1, 0.1)], [2])]
    whole, left, right = make(*images), make(*images[:2]), make(*images[2:])
    left.add_unreadable("x")
    whole.add_unreadable("x")
    right.merge(left)
    assert right == whole
    empty = SplitStatistics()
    empty.merge(whole)
    assert empty == whole
