import itertools

import pytest

from detloom.pipelines.lineage.layout import assign_layers, lay_out


def place(edges, root, names="abcdefgh", height=10.0):
    used = [name for name in names if any(name in edge for edge in edges)]
    return lay_out(dict.fromkeys(used, height), edges, root, box_width=100, column_gap=50, row_gap=5)


def test_layers_follow_the_longest_path_to_the_root():
    # a -> b -> d, c -> d: c could be in the first column, but is placed next to d
    layers = assign_layers(list("abcd"), [("a", "b"), ("b", "d"), ("c", "d")], "d")
    assert layers == {"a": 0, "b": 1, "c": 1, "d": 2}


def test_node_without_a_path_to_the_root_is_right_of_its_source():
    layers = assign_layers(list("abcx"), [("a", "b"), ("b", "c"), ("a", "x")], "c")
    assert layers == {"a": 0, "b": 1, "c": 2, "x": 1}


def test_chain_is_a_straight_line():
    layout = place([("a", "b"), ("b", "c")], "c")
    assert [(layout.spots[name].x, layout.spots[name].y) for name in "abc"] == [(0, 0), (150, 0), (300, 0)]
    assert layout.routes["a", "b"] == [(100, 5), (150, 5)]
    assert (layout.width, layout.height) == (400, 10)


def test_layout_of_a_single_node():
    layout = lay_out({"a": 10.0}, [], "a", box_width=100, column_gap=50, row_gap=5)
    assert (layout.width, layout.height) == (100, 10)


def test_avoidable_crossings_are_avoided():
    # a and b feed d and c: written in this order the two edges cross.
    layout = place([("a", "d"), ("b", "c"), ("c", "e"), ("d", "e")], "e")
    above_left = layout.spots["a"].y < layout.spots["b"].y
    above_right = layout.spots["d"].y < layout.spots["c"].y
    assert above_left == above_right


@pytest.mark.parametrize(
    "edges", [[("a", "b"), ("b", "c"), ("c", "d"), ("a", "d"), ("e", "d"), ("a", "f"), ("e", "c")]]
)
def test_boxes_do_not_overlap_and_long_edges_avoid_them(edges):
    layout = place(edges, "d")
    for one, other in itertools.combinations(layout.spots.values(), 2):
        assert one.x != other.x or abs(one.y - other.y) >= 15 - 1e-9  # height 10 and gap 5
    for points in layout.routes.values():
        for x, y in points[1:-1]:
            inside = [s for s in layout.spots.values() if s.x <= x <= s.x + 100 and s.y - 1e-9 < y < s.y + 10]
            assert not inside


def test_edges_at_one_side_of_a_box_end_at_different_points():
    layout = place([("a", "c"), ("b", "c")], "c", height=30.0)
    ends = sorted(points[-1][1] - layout.spots["c"].y for points in layout.routes.values())
    assert ends == pytest.approx([10, 20])
