import tracemalloc

import numpy as np
import pytest

from detloom.components.dataset_validator.statistics.box_overlap import MAX_PAIRS, Overlaps, find_overlaps

BOX = (0.1, 0.1, 0.5, 0.5)
NEAR = (0.1, 0.1, 0.5, 0.49)  # 0.4 * 0.39 of 0.4 * 0.4: IoU 0.975
FAR = (0.6, 0.6, 0.9, 0.9)


def find(boxes, class_ids=None, crowds=None, min_iou=0.9):
    ids = np.ones(len(boxes), np.int64) if class_ids is None else np.array(class_ids)
    return find_overlaps(np.array(boxes, np.float32), ids, crowds, min_iou=min_iou)


def test_two_overlapping_boxes_are_a_pair():
    assert find([BOX, FAR, NEAR]) == Overlaps(num_pairs=1, num_surplus=1, pairs=((0, 2),))


def test_boxes_of_different_classes_may_overlap():
    assert find([BOX, NEAR], [1, 2]) == Overlaps()


def test_the_threshold_is_included():
    # 0.4 x 0.4 and 0.4 x 0.2, in quarters that floats hold exactly: IoU 0.5.
    assert find([(0, 0, 0.5, 0.5), (0, 0, 0.5, 0.25)], min_iou=0.5).num_pairs == 1
    assert find([(0, 0, 0.5, 0.5), (0, 0, 0.5, 0.25)], min_iou=0.51).num_pairs == 0


def test_three_equal_boxes_are_three_pairs_and_two_surplus():
    assert find([BOX] * 3) == Overlaps(num_pairs=3, num_surplus=2, pairs=((0, 1), (0, 2), (1, 2)))


def test_crowds_are_skipped():
    assert find([BOX, NEAR, BOX], crowds=np.array([True, False, False])).pairs == ((1, 2),)


@pytest.mark.parametrize("bad", [(0.5, 0.5, 0.1, 0.1), (0.1, 0.1, 0.1, 0.5), (np.nan, 0, 1, 1), (0, 0, np.inf, 1)])
def test_invalid_boxes_are_skipped(bad):
    assert find([bad, bad, BOX]) == Overlaps()


def test_huge_coordinates_do_not_overflow():
    with np.errstate(all="raise"):
        assert find([(-1e30, -1e30, 1e30, 1e30)] * 2) == Overlaps()


@pytest.mark.parametrize("boxes", [[], [BOX]])
def test_fewer_than_two_boxes_have_no_pair(boxes):
    assert find(np.array(boxes).reshape(-1, 4)) == Overlaps()


def test_blocks_match_a_comparison_of_all_pairs():
    rng = np.random.default_rng(0)
    corners = rng.uniform(0, 1, (1500, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(0.05, 0.1, (1500, 2))], axis=1)
    ids = rng.integers(0, 3, 1500)
    height = np.minimum(boxes[:, None, 2], boxes[None, :, 2]) - np.maximum(boxes[:, None, 0], boxes[None, :, 0])
    width = np.minimum(boxes[:, None, 3], boxes[None, :, 3]) - np.maximum(boxes[:, None, 1], boxes[None, :, 1])
    shared = height.clip(0) * width.clip(0)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    is_pair = (shared >= 0.5 * (areas[:, None] + areas - shared)) & (ids[:, None] == ids)
    expected = np.argwhere(np.triu(is_pair, k=1))
    found = find_overlaps(boxes, ids, min_iou=0.5)
    assert found.num_pairs == len(expected) > MAX_PAIRS
    assert found.num_surplus == len(set(expected[:, 1]))
    assert [list(pair) for pair in found.pairs] == expected[:MAX_PAIRS].tolist()


def test_thousands_of_equal_boxes_need_bounded_memory():
    tracemalloc.start()
    found = find([BOX] * 4_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.num_pairs == 4_000 * 3_999 // 2
    assert (found.num_surplus, len(found.pairs)) == (3_999, MAX_PAIRS)
    assert peak < 64 << 20  # all pairs at once would be 128 MB per array
