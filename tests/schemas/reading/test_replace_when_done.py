import contextlib
import errno
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from detloom.schemas.reading import replace_when_done as module
from detloom.schemas.reading.replace_when_done import move_folder, replace_when_done

NO_PROCESS = 2**31 - 1  # more than any process has


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "volume" / "key"
    (folder / "best").mkdir(parents=True)
    (folder / "log").write_text("x")
    (folder / "best" / "ckpt-7").write_text("seven steps")
    return folder


@pytest.fixture
def target(tmp_path):
    return tmp_path / "pod" / "model_run"


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


MOVED = {"log": "x", "best/ckpt-7": "seven steps"}


def refuse_renames(monkeypatch, error: int, only_between: tuple[Path, Path] | None = None) -> None:
    """Make `os.replace` fail for folders, or only for those between two places."""
    replace = os.replace

    def refuse(old, new):
        is_affected = True
        if only_between is not None:
            is_affected = Path(old).is_relative_to(only_between[0]) and Path(new).is_relative_to(only_between[1])
        if is_affected and Path(old).is_dir():
            raise OSError(error, os.strerror(error))
        replace(old, new)

    monkeypatch.setattr(module.os, "replace", refuse)


def assert_no_leftovers(source: Path, target: Path) -> None:
    assert not source.exists()
    assert [path.name for path in source.parent.iterdir()] == []
    assert [path.name for path in target.parent.iterdir()] == [target.name]


@pytest.mark.parametrize("exists", [False, True])
def test_folder_is_renamed_if_possible_and_replaces_an_existing_one(source, target, exists):
    if exists:
        target.mkdir(parents=True)
        (target / "of_before").write_text("")
    inode = (source / "log").stat().st_ino
    move_folder(source, target)
    assert contents(target) == MOVED
    assert (target / "log").stat().st_ino == inode
    assert_no_leftovers(source, target)


def test_folder_is_copied_to_another_file_system(source, target):
    if not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == os.stat(source).st_dev:
        pytest.skip("no second file system")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        moved = Path(memory) / "model_run"
        moved.mkdir()  # as TFX does
        move_folder(source, moved)
        assert contents(moved) == MOVED
        assert_no_leftovers(source, moved)


@pytest.mark.reliability("full disk", "train")
def test_failed_copy_keeps_the_source_and_leaves_no_partial_target(source, target, monkeypatch):
    refuse_renames(monkeypatch, errno.EXDEV, (source.parent, target.parent))

    def fail(old, new):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(module.shutil, "copyfile", fail)
        with pytest.raises(shutil.Error, match="No space left on device"):
            move_folder(source, target)
    assert not target.exists()
    assert contents(source) == MOVED
    move_folder(source, target)  # the second attempt succeeds
    assert contents(target) == MOVED
    assert_no_leftovers(source, target)


@pytest.mark.reliability("kill", "train")
def test_leftovers_of_a_killed_copy_are_deleted(source, target, monkeypatch):
    refuse_renames(monkeypatch, errno.EXDEV, (source.parent, target.parent))
    left = target.with_name(".model_run.copy")
    left.mkdir(parents=True)
    (left / "half").write_text("")
    move_folder(source, target)
    assert contents(target) == MOVED
    assert_no_leftovers(source, target)


def test_source_is_renamed_before_it_is_deleted(source, target, monkeypatch):
    """A process that is killed while deleting has renamed the folder before."""
    refuse_renames(monkeypatch, errno.EXDEV, (source.parent, target.parent))
    deleted = []
    monkeypatch.setattr(module.shutil, "rmtree", lambda folder, **_: deleted.append((Path(folder), source.exists())))
    move_folder(source, target)
    assert deleted[-1] == (source.with_name(".key.moved"), False)


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOSYS, errno.ENOTSUP])
def test_files_are_copied_on_the_mount_of_an_object_store(source, target, monkeypatch, error):
    """gcsfuse reports "too many open files" for a folder that it cannot rename."""
    refuse_renames(monkeypatch, error)
    target.mkdir(parents=True)
    (target / "log").write_text("half a line of an attempt that was killed")
    move_folder(source, target)
    assert contents(target) == MOVED
    assert_no_leftovers(source, target)


def test_files_are_copied_from_a_disk_to_the_mount_of_an_object_store(source, target, monkeypatch):
    def refuse(old, new):
        is_across = Path(old).is_relative_to(source.parent) and Path(new).is_relative_to(target.parent)
        code = errno.EXDEV if is_across else errno.EMFILE
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(module.os, "replace", refuse)
    move_folder(source, target)
    assert contents(target) == MOVED
    assert_no_leftovers(source, target)


def test_file_and_folder_are_replaced_when_complete(tmp_path):
    file, folder = tmp_path / "a.txt", tmp_path / "model"
    folder.mkdir()
    (folder / "of_before").write_text("")
    file.write_text("old")
    with replace_when_done(file) as partial:
        partial.write_text("new")
        assert file.read_text() == "old"
    with replace_when_done(folder) as partial:
        (partial / "assets").mkdir(parents=True)
        (partial / "assets" / "b").write_text("b")
    assert file.read_text() == "new"
    assert contents(folder) == {"assets/b": "b"}
    assert {path.name for path in tmp_path.iterdir()} == {"a.txt", "model"}


@pytest.mark.parametrize("error", [KeyboardInterrupt, None])
def test_nothing_is_replaced_if_the_block_raises_or_writes_nothing(tmp_path, error):
    file = tmp_path / "a.txt"
    file.write_text("old")
    left = tmp_path / f".a.txt.{NO_PROCESS}.partial"
    left.mkdir()
    (left / "half").write_text("")
    with pytest.raises(KeyboardInterrupt) if error else contextlib.nullcontext(), replace_when_done(file) as partial:
        assert not partial.exists()
        if error:
            partial.write_text("half")
            raise error
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_content_is_synced_before_the_rename(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(module, "sync", lambda path: synced.append((path.name, (tmp_path / "model").exists())))
    with replace_when_done(tmp_path / "model") as partial:
        partial.mkdir()
        (partial / "b").write_text("b")
    assert sorted(synced) == [(f".model.{os.getpid()}.partial", False), ("b", False)]


@pytest.mark.parametrize("target", ["other.txt", "folder"])
def test_a_link_at_the_temporary_path_is_not_followed(tmp_path, target):
    (tmp_path / "folder").mkdir()
    (tmp_path / f".a.txt.{os.getpid()}.partial").symlink_to(tmp_path / target)
    with replace_when_done(tmp_path / "a.txt") as partial:
        partial.write_text("new")
    assert not (tmp_path / "a.txt").is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {"a.txt", "folder"}


def test_the_unfinished_content_of_another_process_is_not_published(tmp_path):
    other = tmp_path / f".a.txt.{os.getppid()}.partial"
    other.write_text("half")
    with replace_when_done(tmp_path / "a.txt") as partial:
        partial.write_text("new")
    assert (tmp_path / "a.txt").read_text() == "new"
    assert other.read_text() == "half"
