import tracemalloc

import numpy as np
import pytest

from detloom.components.dataset_validator.statistics import box_overlap
from detloom.components.dataset_validator.statistics.box_overlap import count_repeated_boxes

BOX = (0.1, 0.1, 0.5, 0.5)
NEAR = (0.1, 0.1, 0.5, 0.49)  # 0.4 * 0.39 of 0.4 * 0.4: IoU 0.975
FAR = (0.6, 0.6, 0.9, 0.9)
WHOLE, HALF = (0, 0, 0.5, 0.5), (0, 0, 0.5, 0.25)  # in quarters that floats hold exactly: IoU 0.5


@pytest.mark.parametrize(
    ("boxes", "class_ids", "min_iou", "expected"),
    [
        ([], [], 0.9, 0),
        ([BOX], [1], 0.9, 0),
        ([BOX, FAR, NEAR], [1, 1, 1], 0.9, 1),
        ([BOX, NEAR], [1, 2], 0.9, 0),
        ([WHOLE, HALF], [1, 1], 0.5, 1),
        ([WHOLE, HALF], [1, 1], 0.51, 0),
        ([BOX] * 3, [1] * 3, 0.9, 2),
    ],
)
def test_boxes_that_repeat_an_earlier_one_of_their_class_are_counted(boxes, class_ids, min_iou, expected):
    assert count_repeated_boxes(np.array(boxes), np.array(class_ids), min_iou=min_iou) == expected


def test_blocks_match_a_comparison_of_all_pairs(monkeypatch):
    rng = np.random.default_rng(0)
    corners = rng.uniform(0, 1, (300, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(0.05, 0.2, (300, 2))], axis=1)
    ids = rng.integers(0, 3, 300)
    sides = np.minimum(boxes[:, None, 2:], boxes[None, :, 2:]) - np.maximum(boxes[:, None, :2], boxes[None, :, :2])
    shared, areas = sides.clip(0).prod(axis=2), (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    is_pair = (shared >= 0.3 * (areas[:, None] + areas - shared)) & (ids[:, None] == ids)
    monkeypatch.setattr(box_overlap, "_BLOCK_ELEMENTS", 2000)
    expected = np.triu(is_pair, k=1).any(axis=0).sum()
    assert count_repeated_boxes(boxes, ids, min_iou=0.3) == expected > 20


def test_thousands_of_equal_boxes_need_bounded_memory():
    tracemalloc.start()
    assert count_repeated_boxes(np.array([BOX] * 4_000), np.ones(4_000), min_iou=0.9) == 3_999
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 << 20  # all pairs at once would be 128 MB per array
