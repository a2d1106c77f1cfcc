import os

import pytest

from detloom.components.small_files import list_names, read_bytes, write_bytes


def test_what_is_written_is_listed_and_read(tmp_path):
    folder = str(tmp_path / "a" / "b")
    assert list_names(folder) == []
    assert read_bytes(folder, "one", 10) is None
    write_bytes(folder, "two", b"2")
    write_bytes(folder, "one", b"1")
    write_bytes(folder, "one", b"11")
    assert list_names(folder) == ["one", "two"]
    assert read_bytes(folder, "one", 10) == b"11"


def test_of_a_large_file_one_byte_more_than_the_limit_is_read(tmp_path):
    write_bytes(str(tmp_path), "large", b"12345")
    assert read_bytes(str(tmp_path), "large", 3) == b"1234"


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    write_bytes(str(tmp_path), "one", b"before")

    def fail(descriptor):
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        write_bytes(str(tmp_path), "one", b"after")
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
    assert (tmp_path / "one").read_bytes() == b"before"


def test_a_storage_is_reached_through_tfx():
    # ram:// is TensorFlow's own file system in memory; TFX's layer hands it what it does not know itself.
    folder = "ram://small_files/records"
    assert list_names(folder) == []
    assert read_bytes(folder, "one", 10) is None
    write_bytes(folder, "one", b"1")
    assert list_names(folder) == ["one"]
    assert read_bytes(folder, "one", 10) == b"1"


def test_a_storage_that_cannot_be_reached_is_an_os_error_without_the_secret():
    with pytest.raises(OSError, match="not implemented") as caught:
        list_names("nowhere://user:secret@host/records")
    assert "secret" not in str(caught.value)
