"""Every operation on a local folder and on a bucket, and what only a local folder can do."""

import os
import re
import stat

import pytest

from detloom.components.storage.bucket import BucketStorage
from detloom.components.storage.interface import Entry
from detloom.components.storage.storage import LocalStorage, open_storage, read_regular_file
from detloom.schemas.errors import InputError


@pytest.fixture(params=["local", "gs", "s3"])
def storage(request, tmp_path):
    if request.param in ("gs", "s3"):
        request.getfixturevalue("make_bucket")(request.param)
        return open_storage("gs://bucket/data" if request.param == "gs" else "s3://bucket/data/")
    return open_storage(tmp_path / "data")


def test_an_address_chooses_the_storage():
    kinds = dict.fromkeys(("gs://b/a", "s3://b/a", "az://b/a"), BucketStorage)
    kinds["a"] = LocalStorage
    assert {root: type(open_storage(root)) for root in kinds} == kinds
    with pytest.raises(InputError, match=r"nowhere://.*allowed: .*gs://") as caught:
        open_storage("nowhere://user:secret@host/records")
    assert "secret" not in str(caught.value)


def test_a_written_file_is_listed_and_read(storage):
    assert storage.list_names() == []
    assert storage.list_entries("a") == []
    assert storage.read("a/one") is None
    assert storage.status("a/one") is None
    storage.write("a/two", b"2")
    storage.write("a/one", b"11")
    assert storage.list_names("a") == ["one", "two"]
    assert storage.list_names() == ["a"]
    assert storage.read("a/one") == b"11"
    assert storage.exists("a/one")
    assert storage.is_folder("a")
    assert not storage.is_folder("a/one")


def test_entries_have_paths_sizes_and_times(storage):
    storage.write("a/one", b"123")
    storage.write("a/b/two", b"")
    folder, file = storage.list_entries("a")
    assert (folder.path, folder.is_folder, folder.size) == ("a/b", True, 0)
    assert (file.path, file.is_folder, file.size) == ("a/one", False, 3)
    assert file.mtime_ns > 1.7e18  # after 2023
    assert storage.status("a/one") == file
    assert [entry.path for entry in storage.walk()] == ["a/b/two", "a/one"]


def test_one_byte_more_than_the_limit_is_read(storage):
    storage.write("large", b"12345")
    assert storage.read("large", 3) == b"1234"


def test_a_file_is_streamed_from_any_position(storage):
    storage.write("file", b"12345")
    with storage.open("file") as file:
        assert file.seek(0, os.SEEK_END) == 5
        file.seek(1)
        assert file.read(2) == b"23"
        file.seek(1, os.SEEK_CUR)
        assert file.read() == b"5"


def test_lines_are_written_and_read(storage):
    with storage.open_to_write("a/lines") as file:
        for number in range(3):
            file.write(b"%d\n" % number)
        assert storage.list_names("a") == []
    assert list(storage.read_lines("a/lines")) == [b"0", b"1", b"2"]
    assert storage.list_names("a", with_hidden=True) == ["lines"]


def test_json_survives_the_round_trip(storage):
    storage.write_json("a/values.json", {"name": "größer"})
    assert storage.read("a/values.json") == '{\n  "name": "größer"\n}\n'.encode()
    storage.write_json("a/values.json", ["\ud800"])
    assert storage.read_json("a/values.json") == ["?"]


def test_an_exception_while_writing_leaves_the_file_unchanged(storage):
    storage.write("one", b"long before")
    storage.write("one", b"before")
    writing = storage.open_to_write("one")
    writing.__enter__().write(b"after")
    assert not writing.__exit__(KeyError, KeyError(), None)
    assert storage.list_names(with_hidden=True) == ["one"]
    assert storage.read("one") == b"before"


def test_hidden_names_are_listed_on_request(storage):
    storage.write(".killed.123", b"")
    storage.write("one", b"")
    assert storage.list_names() == ["one"]
    assert [entry.path for entry in storage.list_entries(with_hidden=True)] == [".killed.123", "one"]


def test_files_are_renamed_and_deleted(storage):
    storage.write("a/one", b"1")
    storage.write("two", b"2")
    storage.rename("a/one", "two")
    assert storage.read("two") == b"1"
    storage.delete("two")
    storage.delete("two")
    assert storage.list_names("a") == []
    storage.delete_tree("a")
    storage.delete_tree("nowhere")
    assert storage.list_names() == []


def test_a_folder_is_deleted_with_its_content(storage):
    for name in ("a", "b/one", "b/.hidden", "b/deep/two"):
        storage.write(name, b"1")
    storage.delete_tree()
    assert storage.list_names(with_hidden=True) == []


def test_the_last_of_several_files_exists_only_if_all_do(storage, monkeypatch):
    storage.replace_files({"data": b"1", "page": b"1"})
    written = storage.write

    def fail_at_the_page(path, data):
        if path == "page":
            raise OSError("killed")
        written(path, data)

    monkeypatch.setattr(storage, "write", fail_at_the_page)
    with pytest.raises(OSError, match="killed"):
        storage.replace_files({"data": b"2", "page": b"2"})
    assert storage.read("data") == b"2"
    assert storage.list_names() == ["data"]


def test_a_failed_write_leaves_the_file_unchanged(tmp_path, monkeypatch):
    storage = LocalStorage(tmp_path)
    storage.write("one", b"before")

    def fail(descriptor):
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        storage.write("one", b"after")
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
    assert (tmp_path / "one").read_bytes() == b"before"


def test_deleting_a_link_to_a_folder_keeps_its_target(tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "target/file").write_bytes(b"1")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    storage = LocalStorage(tmp_path)
    storage.delete_tree("link")
    assert storage.list_names() == ["target"]
    assert storage.read("target/file") == b"1"


def test_a_pipe_is_an_error_and_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="regular file"):
        LocalStorage(tmp_path).read("pipe")


@pytest.mark.parametrize("stated", [0, 3, 10, 20], ids=["none", "less", "all", "more"])
def test_a_local_file_is_read_to_its_end_whatever_size_is_stated(stated, tmp_path, monkeypatch):
    path = tmp_path / "data"
    path.write_bytes(b"0123456789")
    fields = list(os.stat(path))
    fields[stat.ST_SIZE] = stated
    monkeypatch.setattr(os, "fstat", lambda _: os.stat_result(fields))
    assert read_regular_file(str(path), 100) == b"0123456789"
    assert read_regular_file(str(path), 10) == b"0123456789"
    assert read_regular_file(str(path), 4) == b"01234"  # one byte more than the limit


def test_folders_are_renamed_and_files_appended_to(tmp_path):
    storage = LocalStorage(tmp_path)
    storage.write("a/one", b"1")
    storage.rename_folder("a", "b")
    storage.append("b/one", b"2")
    storage.sync("b")
    assert storage.read("b/one") == b"12"


@pytest.mark.reliability("hostile input", "rollback")
@pytest.mark.parametrize("name", ["..", "."])
def test_a_name_that_leads_out_of_its_folder_is_refused(name, tmp_path, monkeypatch):
    storage = LocalStorage(tmp_path)
    monkeypatch.setattr(storage, "list_entries", lambda folder, **options: [Entry(f"{folder}/{name}")])
    with pytest.raises(InputError, match=f"{tmp_path}/1: .*{re.escape(repr(name))}"):
        list(storage.walk("1"))
