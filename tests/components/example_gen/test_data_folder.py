"""Reads of untrusted data: no read leaves the folder, blocks, or fills the memory."""

import os

import pytest

from detloom.components.example_gen.data_folder import DataFolder, SourceError, join_inside
from detloom.schemas.contracts.rejects import Reason
from detloom.schemas.errors import InputError


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "data"
    (root / "images/deep").mkdir(parents=True)
    (root / "images/a.jpg").write_bytes(b"12345")
    (root / "images/deep/b.JPG").write_bytes(b"1")
    (root / "images/.hidden.jpg").write_bytes(b"1")
    (root / "list.txt").write_text("\ufeffäöü", encoding="utf-8")
    (tmp_path / "secret.txt").write_text("secret")
    return DataFolder(str(root))


def refusal(call, *arguments):
    with pytest.raises(SourceError) as caught:
        call(*arguments)
    return caught.value.reason


@pytest.mark.parametrize(
    ("folder_name", "name", "expected"),
    [
        ("images", "a.jpg", "images/a.jpg"),
        ("", "a/../b.jpg", "b.jpg"),
        ("images", "../a.jpg", None),
        ("images", "../images2/a.jpg", None),
        ("images", "/etc/passwd", None),
        ("", "..", None),
        ("images", "", None),
        ("images", "a\0.jpg", None),
        ("", "gs://bucket/a.jpg", None),
    ],
)
def test_a_name_stays_in_its_folder(folder_name, name, expected):
    assert join_inside(folder_name, name) == expected


def test_a_file_above_the_limit_is_not_read(folder):
    assert folder.read_bytes("images/a.jpg", 5) == b"12345"
    assert refusal(folder.read_bytes, "images/a.jpg", 4) is Reason.FILE_TOO_LARGE


def test_text_must_be_utf_8_and_loses_its_byte_order_mark(folder):
    assert folder.read_text("list.txt", 100) == "äöü"
    with open(f"{folder.root}/bad.txt", "wb") as file:
        file.write(b"caf\xe9")
    assert refusal(folder.read_text, "bad.txt", 100) is Reason.UNREADABLE_ANNOTATION


@pytest.mark.reliability("hostile input", "ingest")
@pytest.mark.parametrize(
    "path", ["../secret.txt", "images/../../secret.txt", "/etc/passwd", "..", "images/..", "a\0b/c"]
)
def test_a_path_that_leads_outside_is_an_error(folder, path):
    assert refusal(folder.read_bytes, path, 100) is Reason.PATH_OUTSIDE


def test_a_link_is_followed_only_inside_the_folder(folder, tmp_path):
    os.symlink(tmp_path / "secret.txt", f"{folder.root}/images/out.jpg")
    os.symlink("a.jpg", f"{folder.root}/images/in.jpg")
    os.symlink(tmp_path, f"{folder.root}/images/up")
    assert refusal(folder.read_bytes, "images/out.jpg", 100) is Reason.PATH_OUTSIDE
    assert refusal(folder.read_bytes, "images/up/secret.txt", 100) is Reason.PATH_OUTSIDE
    assert folder.read_bytes("images/in.jpg", 100) == b"12345"
    assert not folder.is_file("images/out.jpg")


def test_a_top_level_folder_may_be_a_link(folder, tmp_path):
    (tmp_path / "disk2").mkdir()
    (tmp_path / "disk2/c.jpg").write_bytes(b"c")
    os.symlink(tmp_path / "disk2", f"{folder.root}/more")
    os.symlink(tmp_path / "secret.txt", tmp_path / "disk2/out.jpg")
    assert folder.read_bytes("more/c.jpg", 10) == b"c"
    assert refusal(folder.read_bytes, "more/out.jpg", 100) is Reason.PATH_OUTSIDE


def test_a_loop_of_links_and_a_missing_file_are_errors(folder):
    os.symlink("loop.jpg", f"{folder.root}/images/loop.jpg")
    assert refusal(folder.read_bytes, "images/loop.jpg", 100) is Reason.UNREADABLE_FILE
    assert refusal(folder.read_bytes, "images/none.jpg", 100) is Reason.MISSING_FILE
    assert refusal(folder.read_bytes, "images/a.jpg/b.jpg", 100) is Reason.MISSING_FILE


@pytest.mark.reliability("hostile input", "ingest")
def test_a_pipe_and_a_folder_are_not_files(folder):
    os.mkfifo(f"{folder.root}/images/pipe.jpg")
    assert refusal(folder.read_bytes, "images/pipe.jpg", 100) is Reason.UNREADABLE_FILE
    assert refusal(folder.read_bytes, "images/deep", 100) is Reason.UNREADABLE_FILE
    assert folder.status("images/pipe.jpg") is None


def test_listings_are_sorted_and_skip_hidden_files_and_ignore_the_case_of_suffixes(folder):
    assert folder.list_files("images", (".jpg",)) == ["images/a.jpg"]
    assert folder.list_files("", (".jpg",), recursive=True) == ["images/a.jpg", "images/deep/b.JPG"]
    assert folder.list_folders("images") == ["images/deep"]
    assert folder.list_files("nowhere") == []


def test_a_folder_is_listed_without_looking_at_each_file(tmp_path, monkeypatch):
    for name in [f"{number:03d}.jpg" for number in range(120)] + ["sub/a.txt"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
    calls = []
    real = os.lstat, os.stat
    monkeypatch.setattr(os, "lstat", lambda *args, **kwargs: calls.append(args) or real[0](*args, **kwargs))
    monkeypatch.setattr(os, "stat", lambda *args, **kwargs: calls.append(args) or real[1](*args, **kwargs))
    folder = DataFolder(str(tmp_path))
    assert len(list(folder.iter_files("", (".JPG",)))) == 120
    assert folder.list_folders() == ["sub"]
    assert len(calls) < 60  # of the parents of tmp_path and sub, when links are resolved


def test_a_walk_ends_at_loops_of_links(folder):
    os.symlink(f"{folder.root}/images", f"{folder.root}/images/deep/again")
    assert [file.path for file in folder.walk()] == ["list.txt", "images/a.jpg", "images/deep/b.JPG"]


def test_a_special_file_is_listed_and_reading_it_is_an_error(folder, tmp_path):
    os.mkfifo(f"{folder.root}/images/pipe.jpg")
    os.symlink("nowhere", f"{folder.root}/images/gone.jpg")
    os.symlink(tmp_path / "secret.txt", f"{folder.root}/images/out.jpg")
    with open(os.fsencode(folder.root) + b"/images/\xff.jpg", "wb"):
        pass
    listed = folder.list_files("images", (".jpg",))
    assert listed == ["images/a.jpg", "images/gone.jpg", "images/out.jpg", "images/pipe.jpg", "images/\udcff.jpg"]
    reasons = [refusal(folder.read_bytes, path, 100) for path in listed[1:4]]
    assert reasons == [Reason.MISSING_FILE, Reason.PATH_OUTSIDE, Reason.UNREADABLE_FILE]


def test_a_folder_that_cannot_be_listed_is_an_error(folder, monkeypatch):
    def fail(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(InputError, match=r"images: .*Permission denied"):
        folder.list_files("images")


@pytest.mark.reliability("hostile input", "ingest")
def test_a_folder_nested_too_deeply_is_an_error(folder):
    os.makedirs(f"{folder.root}/images/" + "d/" * 70)
    with pytest.raises(InputError, match="64 folders"):
        list(folder.walk())
