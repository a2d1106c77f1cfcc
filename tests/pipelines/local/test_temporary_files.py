"""Temporary folders of runs, also of those that were killed."""

import fcntl
import os
import tempfile

import pytest

from detloom.pipelines.local import temporary_files
from detloom.pipelines.local.temporary_files import delete_temporary_folder, own_temporary_folder


@pytest.fixture(autouse=True)
def parent(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_folder_of_a_killed_run_is_deleted_and_that_of_a_running_one_stays(parent, monkeypatch):
    killed, running, young = (parent / f"detloom-run-{name}" for name in ("killed", "running", "young"))
    for folder in (killed, running, young):
        folder.mkdir()
        (folder / "copy").write_bytes(b"1")
    for folder in (killed, running):
        os.utime(folder, (0, 0))
    (parent / "detloom-run-link").symlink_to(parent)
    lock = os.open(running, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with own_temporary_folder():
        assert not killed.exists()
        assert (running / "copy").exists()
        assert (young / "copy").exists()
    os.close(lock)


def test_a_process_that_ends_at_once_deletes_its_folder(parent):
    with own_temporary_folder():
        folder = tempfile.mkdtemp()
        assert os.path.isdir(folder)
        delete_temporary_folder()
        assert not os.path.exists(folder)
        assert list(parent.iterdir()) == []
    assert temporary_files._folder is None
