import pickle

import numpy as np

from detloom.components.dataset_validator.histogram import Histogram


def test_a_size_on_an_edge_belongs_to_the_bin_above():
    sizes = Histogram((8, 16))
    sizes.add(np.array([0, 7.9, 8, 16, 100]))
    assert sizes.to_dict("px") == {"bins": ["0-8", "8-16", "16+"], "counts": [2, 1, 2], "unit": "px"}


def test_a_count_on_an_edge_belongs_to_the_bin_below():
    counts = Histogram((0, 1, 4), is_count=True)
    for value in (0, 1, 2, 4, 5):
        counts.add_one(value)
    assert counts.to_dict("boxes") == {"bins": ["0", "1", "2-4", "5+"], "counts": [1, 1, 2, 1], "unit": "boxes"}


def test_edges_are_named_as_people_write_them():
    assert Histogram((0.125, 0.8, 1.25, 2, 8192)).bin_names() == [
        "0-1/8",
        "1/8-0.8",
        "0.8-1.25",
        "1.25-2",
        "2-8192",
        "8192+",
    ]


def test_merged_parts_equal_the_whole():
    whole, left, right = (Histogram((1, 2)) for _ in range(3))
    whole.add(np.array([0.5, 1.5, 1.5, 3]))
    left.add(np.array([1.5]))
    right.add(np.array([3, 0.5, 1.5]))
    left.merge(right)
    assert left == whole
    assert pickle.loads(pickle.dumps(left)) == whole


def test_no_value_changes_nothing():
    histogram = Histogram((1, 2))
    histogram.add(np.zeros(0))
    assert histogram == Histogram((1, 2))
