"""Rollbacks with a jumping clock, a lost lock and another process in the same folder."""

import threading
import time

import pytest
from pushes import push, roll_back_at

from detloom.components.pusher.manifest import build_manifest
from detloom.components.pusher.push import list_versions, read_records
from detloom.components.pusher.versions import open_destination, verify_version
from detloom.schemas.errors import InputError
from detloom.trainer_module.files.folder_lock import hold_folder_lock


@pytest.fixture
def serving(model, other_model, tmp_path):
    """Return a folder with versions 1000 and 2000."""
    push(model, tmp_path / "serving", 1000.0)
    push(other_model, tmp_path / "serving", 2000.0)
    return tmp_path / "serving"


@pytest.mark.reliability("clock jump", "rollback")
@pytest.mark.parametrize(("at", "version"), [(500.0, 2001), (0.0, 2001), (4e9, 4_000_000_000)])
def test_restored_version_is_the_highest_whatever_the_clock(serving, model, third_model, at, version):
    assert roll_back_at(serving, at).version == version
    assert roll_back_at(serving, 3000.0, to=2000).version == max(3000, version + 1)
    assert push(third_model, serving, 100.0).version == list_versions(serving)[-1]
    records = read_records(serving)
    assert [record["previous_version"] for record in records] == [None, *(r["version"] for r in records[:-1])]


@pytest.mark.reliability("lost lease", "rollback")
def test_rollback_whose_lock_file_was_removed_publishes_nothing(serving, third_model):
    def lose(copy):
        (serving / ".push.lock").unlink()
        push(third_model, serving, 4000.0)

    with pytest.raises(OSError, match=r"\.push\.lock"):
        roll_back_at(serving, 3000.0, check=lose)
    assert list_versions(serving) == [1000, 2000, 4000]
    destination = open_destination(serving)
    assert [verify_version(destination, version) for version in (1000, 2000, 4000)] == [[], [], []]


@pytest.mark.reliability("concurrent runs", "rollback")
def test_rollback_during_a_push_is_refused_if_it_does_not_wait(serving):
    with (
        hold_folder_lock(serving / ".push.lock", "push"),
        pytest.raises(InputError, match="another push is still in progress"),
    ):
        roll_back_at(serving, 3000.0, lock_seconds=0.0)
    assert list_versions(serving) == [1000, 2000]


@pytest.mark.reliability("concurrent runs", "rollback")
def test_rollback_during_a_push_waits_and_replaces_the_pushed_version(serving, other_model, third_model):
    is_loading, results = threading.Event(), []

    def check(folder):
        is_loading.set()
        time.sleep(0.05)  # so that the rollback finds the lock

    thread = threading.Thread(target=lambda: results.append(push(third_model, serving, 3000.0, check=check)))
    thread.start()
    assert is_loading.wait(10.0)
    result = roll_back_at(serving, 3000.0)
    thread.join()
    assert (results[0].version, result.version, result.previous_version) == (3000, 3001, 3000)
    assert result.digest == build_manifest(other_model).digest
