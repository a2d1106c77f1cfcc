import threading

import pytest

from detloom.components.storage import many_files
from detloom.components.storage.many_files import map_files, read_lines_of_files
from detloom.components.storage.storage import open_storage


@pytest.fixture(params=["local", "bucket"])
def storage(request, tmp_path):
    if request.param == "bucket":
        request.getfixturevalue("google_bucket")
    return open_storage(tmp_path if request.param == "local" else "gs://bucket/many_files")


def test_results_have_the_order_of_the_items(storage):
    assert list(map_files(storage, lambda item: item * item, range(100))) == [item * item for item in range(100)]


def test_an_error_is_raised_in_its_place(storage):
    results = map_files(storage, lambda item: 6 // item, [3, 2, 0, 1])
    assert [next(results), next(results)] == [2, 3]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_requests_to_an_address_are_made_at_the_same_time():
    together = threading.Barrier(2, timeout=20)  # broken unless two calls meet
    assert len(list(map_files(open_storage("gs://bucket/many_files"), lambda _: together.wait(), range(4)))) == 4


def test_few_results_are_in_memory():
    taken = []
    results = map_files(
        open_storage("gs://bucket/many_files"), str, (taken.append(item) or item for item in range(1000))
    )
    assert next(results) == "0"
    assert len(taken) <= many_files._MAX_AHEAD + 1
    results.close()


def test_lines_of_small_and_large_files_are_read_in_the_order_of_the_names(storage, monkeypatch):
    monkeypatch.setattr(many_files, "_LARGE_BYTES", 10)
    for number in range(40):
        storage.write(f"lines/{number:02d}", f"{number} a\n{number} b\n".encode() * (1 + number % 3))
    found = list(read_lines_of_files(storage, "lines"))
    assert found == [f"{number} {end}".encode() for number in range(40) for _ in range(1 + number % 3) for end in "ab"]
    storage.write("lines/40", b"")
    assert list(read_lines_of_files(storage, "lines")) == found
    assert list(read_lines_of_files(storage, "nothing")) == []
