"""Items grouped by image: complete, ordered, on disk."""

import random
import tempfile
import tracemalloc

from detloom.components.example_gen.sources.image_groups import ImageGroups, read_payload


def read(groups):
    return [(image, [(kind, read_payload(payload)) for kind, payload in items]) for image, items in groups.by_image()]


def test_items_are_ordered_by_image_kind_and_insertion():
    with ImageGroups() as groups:
        assert read(groups) == []
        for image, kind, value in [("b", 1, ("1", 2.5)), ("a", 1, None), ("b", 0, {"3": [3]}), ("b", 1, "0")]:
            groups.add(image, kind, value)
        assert read(groups) == [("a", [(1, None)]), ("b", [(0, {"3": [3]}), (1, ("1", 2.5)), (1, "0")])]


def test_many_scattered_items_are_all_grouped():
    names = ["", "5", "05", "é", "'; DROP TABLE items; --", "a b", "A", "a", *map(str, range(100, 600))]
    order = [(name, number) for name in names for number in range(50)]
    random.Random(0).shuffle(order)
    expected: dict[str, list[int]] = {}
    with ImageGroups() as groups:
        for name, number in order:
            groups.add(name, 1, number)
            expected.setdefault(name, []).append(number)
        found = {name: [number for _, number in items] for name, items in read(groups)}
    assert found == expected
    assert list(found) == sorted(expected)


def test_a_group_that_is_not_consumed_does_not_affect_the_next():
    with ImageGroups() as groups:
        for image in "aab":
            groups.add(image, 0, image)
        firsts = [(image, read_payload(next(items)[1])) for image, items in groups.by_image()]
        assert firsts == [("a", "a"), ("b", "b")]


def test_the_database_is_a_deleted_file_and_memory_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tracemalloc.start()
    with ImageGroups() as groups:
        for number in range(60):
            groups.add(str(number), 0, bytes([number]) * 2**19)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 10e6  # the items have 30 MB
        assert sum(1 for _ in groups.by_image()) == 60
        assert list(tmp_path.iterdir()) == []
