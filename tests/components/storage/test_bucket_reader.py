"""Reading many files of a bucket takes few requests, and gives what single requests give."""

import random

import pytest

from detloom.components.storage import bucket_reader
from detloom.components.storage.bucket_reader import open_to_read
from detloom.components.storage.storage import open_storage


@pytest.fixture
def fill(bucket):
    """Return a function that writes objects and forgets the requests so far."""

    def call(contents):
        for name, content in contents.items():
            bucket.put(name, content)
        bucket.requests.clear()

    return call


@pytest.fixture
def reader(root):
    return open_to_read(root)


def shown(entry):
    return entry and (entry.path, entry.size, entry.is_folder)


def test_files_and_folders_are_found_as_by_single_requests(fill, bucket, root):
    bucket.page_size = 3
    names = ["a.jpg", "a!", "a/b.jpg", "a/c/d.jpg", "b/", "b/x", "ä.jpg", "z"]
    fill({f"data/{name}": b"" if name == "b/" else b"1" * number for number, name in enumerate(names)})
    single = open_storage(root)
    paths = ["a", "a.jpg", "a!", "a/b.jpg", "a/c", "a/c/d.jpg", "b", "b/x", "ä.jpg", "z", "0", "aa", "a/0", "c/d", "~"]
    for seed in range(5):
        reader = open_to_read(root)
        for path in random.Random(seed).choices(paths, k=40):
            assert shown(reader.status(path)) == shown(single.status(path)), path
            assert reader.is_folder(path) == single.is_folder(path), path


def test_a_thousand_names_take_one_request(fill, bucket, reader):
    fill({f"data/images/{number:04d}.jpg": b"12" for number in range(2500)})
    for number in range(2500):
        assert reader.status(f"images/{number:04d}.jpg").size == 2
    assert reader.status("images/2499.png") is None
    assert len(bucket.requests) == 3


def test_a_file_takes_one_request(fill, bucket, root):
    fill({"data/a": b"12345", "data/empty": b""})
    storage = open_storage(root)
    assert storage.read("a", 5) == b"12345"
    assert storage.read("a", 3) == b"1234"  # cut one byte after the limit
    assert storage.read("missing", 5) is None
    assert storage.read_part("a", 1, 3) == b"23"
    assert len(bucket.requests) == 4
    assert storage.read("empty", 5) == b""


def test_a_whole_file_takes_two_requests(fill, bucket, root):
    content = random.Random(0).randbytes(1_000_000)
    fill({"data/a": content, "data/b.json": b'{"a": "\xc3\xa4"}'})
    storage = open_storage(root)
    with storage.open("a") as file:
        assert file.read() == content
    assert len(bucket.requests) == 2
    with storage.open("a") as file:
        assert file.read(10) + file.read() == content
    bucket.requests.clear()
    assert storage.read_json("b.json") == {"a": "ä"}
    assert len(bucket.requests) <= 2
    with pytest.raises(FileNotFoundError, match=f"{root}/c.json"):
        storage.read_json("c.json")


def test_expected_files_are_read_ahead_in_any_case(fill, bucket, reader):
    contents = {f"data/{number}": bytes([number]) for number in range(50)}
    fill(contents)
    names = [str(number) for number in range(50)]
    reader.expect(names, 10)
    wanted = [name for name in names if name not in ("3", "40")]  # two are not read after all
    assert [reader.read(name, 10) for name in wanted] == [contents[f"data/{name}"] for name in wanted]
    assert len(bucket.requests) == 50
    reader.expect(["1", "missing"], 10)
    assert reader.read("2", 10) == b"\2"
    assert [reader.read("1", 10), reader.read("missing", 10)] == [b"\1", None]
    assert reader.read("1", 20) == b"\1"


@pytest.mark.parametrize("knows_sizes", [True, False])
def test_few_large_files_are_read_ahead(knows_sizes, fill, bucket, reader, monkeypatch):
    monkeypatch.setattr(bucket_reader, "_MAX_BYTES_AHEAD", 250)
    fill({f"data/{number}": bytes(100) for number in range(10, 30)} | {"data/30": bytes(1000), "data/31": b"1"})
    if knows_sizes:
        assert reader.status("10")
        bucket.requests.clear()
    reader._last_bytes = 0 if knows_sizes else 100
    names = [str(number) for number in range(10, 32)]
    reader.expect(names, 2000)
    for number, name in enumerate(names):
        assert len(reader._ahead) in ({3} if number < 19 else {1, 2, 3})
        assert reader.read(name, 2000)
    assert len(bucket.requests) == 22


def test_the_error_of_a_file_is_raised_when_it_is_read(fill, bucket, reader, root):
    fill({"data/1": b"1", "data/2": b"2"})
    bucket.faults[1] = "refused"
    reader.expect(["1"], 10)
    with pytest.raises(PermissionError, match=f"{root}/1"):
        reader.read("1", 10)
    assert reader.read("2", 10) == b"2"


def test_a_reader_keeps_few_pages(fill, bucket, root, monkeypatch):
    monkeypatch.setattr(bucket_reader, "_MAX_PAGES", 2)
    monkeypatch.setattr(bucket_reader, "_PAGE_NAMES", 10)
    reader = open_to_read(root)
    fill({f"data/{number:02d}": b"" for number in range(50)})
    for _ in range(2):
        assert all(reader.status(f"{number:02d}") for number in (5, 25, 45))
        assert reader.status("25x") is None
    assert len(bucket.requests) == 6  # each of the three pages is gone when it is needed again
