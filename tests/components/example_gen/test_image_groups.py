"""Items grouped by image: complete, ordered, on disk."""

import random
import tempfile
import tracemalloc

from detloom.components.example_gen.sources.image_groups import ImageGroups


def read(groups):
    return [(image, list(items)) for image, items in groups.by_image()]


def test_items_are_ordered_by_image_kind_and_insertion():
    with ImageGroups() as groups:
        for image, kind, payload in [("b", 1, b"1"), ("a", 1, b"2"), ("b", 0, b"3"), ("b", 1, b"0")]:
            groups.add(image, kind, payload)
        assert read(groups) == [("a", [(1, b"2")]), ("b", [(0, b"3"), (1, b"1"), (1, b"0")])]


def test_no_items_give_no_groups():
    with ImageGroups() as groups:
        assert read(groups) == []


def test_many_scattered_items_are_all_grouped():
    order = [(str(image), number) for image in range(500) for number in range(50)]
    random.Random(0).shuffle(order)
    expected: dict[str, list[bytes]] = {}
    with ImageGroups() as groups:
        for image, number in order:
            payload = b"\0" + str(number).encode()
            groups.add(image, 1, payload)
            expected.setdefault(image, []).append(payload)
        found = {image: [payload for _, payload in items] for image, items in groups.by_image()}
    assert found == expected
    assert list(found) == sorted(expected)


def test_a_group_that_is_not_consumed_does_not_affect_the_next():
    with ImageGroups() as groups:
        for image in "aab":
            groups.add(image, 0, image.encode())
        assert [(image, next(items)) for image, items in groups.by_image()] == [("a", (0, b"a")), ("b", (0, b"b"))]


def test_the_database_file_is_unlinked_while_open(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ImageGroups() as groups:
        for number in range(30_000):
            groups.add(str(number), 0, b"x" * 500)
        assert len(read(groups)) == 30_000
        assert list(tmp_path.iterdir()) == []


def test_large_items_are_flushed_by_size():
    with ImageGroups() as groups:
        tracemalloc.start()
        for number in range(200):
            groups.add(str(number), 0, bytes([number]) * 2**19)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 16e6  # the items have 100 MB
        assert len(read(groups)) == 200


def test_unusual_names_are_distinct():
    names = ["", "5", "05", "é", "'; DROP TABLE items; --", "a b", "A", "a"]
    with ImageGroups() as groups:
        for name in names:
            groups.add(name, 0, name.encode())
        assert [(image, payload.decode()) for image, [(_, payload)] in read(groups)] == [(n, n) for n in sorted(names)]
