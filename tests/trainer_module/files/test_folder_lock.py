import errno
import fcntl
import json
import os

import pytest

from detloom.trainer_module.files.folder_lock import FolderBusyError, describe_self, format_owner, hold_folder_lock


def test_waiting_for_a_live_owner_of_a_folder_ends_with_an_error_that_names_it(tmp_path, caplog):
    caplog.set_level("INFO", logger="detloom")
    times = iter(range(100))
    waiter = hold_folder_lock(
        tmp_path / "lock", "push", limit_seconds=5.0, clock=lambda: next(times), sleep=lambda seconds: None
    )
    message = rf"5 s \(.*process {os.getpid()} on .*run-7.* delete {tmp_path}/lock"
    with (
        hold_folder_lock(tmp_path / "lock", "push", owner=describe_self("run-7")),
        pytest.raises(FolderBusyError, match=message),
    ):
        waiter.__enter__()
    assert caplog.text.count("waiting for another push to end") == 1


def test_released_lock_has_no_owner_and_the_lock_of_a_dead_owner_is_taken_over(tmp_path, caplog):
    with hold_folder_lock(tmp_path / "lock", "push"):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()
    assert (tmp_path / "lock").read_text() == ""
    (tmp_path / "lock").write_text(
        '{"user": "ann", "pid": 7, "host": "a\\u001b[1m", "run": ""}'
    )  # left by a killed push
    with hold_folder_lock(tmp_path / "lock", "push"):
        pass
    assert r"(ann, process 7 on a\x1b[1m)" in caplog.text


@pytest.mark.parametrize("text", ["", "{", "[]", '{"user": 1}'])
def test_unreadable_owner_is_called_another_process(text):
    assert format_owner(text) == "another process"


def test_lock_is_lost_if_its_file_is_removed(tmp_path):
    with hold_folder_lock(tmp_path / "lock", "push") as check_held:
        check_held()
        (tmp_path / "lock").unlink()
        with hold_folder_lock(tmp_path / "lock", "push") as check_new_one:
            with pytest.raises(OSError, match=f"{tmp_path}/lock"):
                check_held()
            check_new_one()


def test_lock_of_a_file_that_was_removed_while_waiting_is_not_used(tmp_path):
    path = tmp_path / "lock"
    owner = hold_folder_lock(path, "push")
    owner.__enter__()

    def replace_and_release(seconds):
        path.unlink()
        owner.__exit__(None, None, None)

    with hold_folder_lock(path, "push", limit_seconds=9.0, sleep=replace_and_release) as check_held:
        check_held()
        assert json.loads(path.read_text())["pid"] == os.getpid()


def test_folder_without_locks_is_used_with_a_warning_unless_the_lock_is_required(tmp_path, monkeypatch, caplog):
    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with hold_folder_lock(tmp_path / "lock", "run", is_required=False):
        assert f"{tmp_path}: cannot be locked" in caplog.text
    with pytest.raises(OSError, match=os.strerror(errno.ENOLCK)), hold_folder_lock(tmp_path / "lock", "push"):
        pass
