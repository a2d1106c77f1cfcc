import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

import detloom
from detloom.pipelines.local import supervise
from detloom.pipelines.local.supervise import (
    LOCK_FILE,
    NodeTimeoutError,
    TimeLimits,
    delete_temporary_folder,
    hold_workspace,
    own_temporary_folder,
)
from detloom.schemas.errors import InputError
from detloom.trainer_module.files.folder_lock import FolderBusyError

ROOT = Path(detloom.__file__).parents[1]
HOLD = """
import sys
from pathlib import Path
from detloom.pipelines.local.supervise import hold_workspace
with hold_workspace(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.reliability("concurrent runs", "metadata")
def test_a_second_run_in_a_workspace_is_refused_with_the_owner(tmp_path):
    with hold_workspace(tmp_path / "new"), hold_workspace(tmp_path / "another"):
        owner = rf".*process {os.getpid()} on "
        with pytest.raises(FolderBusyError, match=owner) as caught, hold_workspace(tmp_path / "new"):
            pass
    assert caught.value.exit_code == 75
    with hold_workspace(tmp_path / "new"):
        pass


@pytest.mark.reliability("kill", "metadata")
@pytest.mark.slow
def test_the_lock_of_a_killed_process_is_released(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(FolderBusyError, match=f"process {process.pid} "), hold_workspace(tmp_path):
            pass
        process.kill()
    with hold_workspace(tmp_path):
        assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()


@pytest.mark.reliability("hostile input", "metadata")
def test_a_file_as_workspace_and_a_link_as_lock_file_are_refused(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    with pytest.raises(InputError, match="precious: "), hold_workspace(precious):
        pass
    (tmp_path / LOCK_FILE).symlink_to(precious)
    with pytest.raises(InputError, match="cannot be used"), hold_workspace(tmp_path):
        pass
    assert precious.read_text() == "mine"


# --- temporary files ---


@pytest.fixture
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
    assert supervise._folder is None


# --- time limits ---


def stuck_is_a_mistake(error):
    raise AssertionError(error)


def wait_for_signal():
    """Sleep until the alarm raises an exception."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        time.sleep(0.01)
    raise AssertionError("the time limit was not kept")


def test_a_node_over_its_limit_is_interrupted():
    with TimeLimits({"Trainer": 0.05}.get, stuck_is_a_mistake) as limits:
        limits.start("Trainer")
        with pytest.raises(NodeTimeoutError, match=r"it took longer than its time limit of 50 ms") as caught:
            wait_for_signal()
        assert (caught.value.node, caught.value.seconds) == ("Trainer", 0.05)
        assert limits.exceeded is caught.value


def test_finished_and_unlimited_nodes_are_not_interrupted():
    with TimeLimits({"Trainer": 0.05}.get, stuck_is_a_mistake) as limits:
        limits.start("Trainer")
        limits.finish()
        limits.start("Pusher")
        time.sleep(0.15)
        assert limits.exceeded is None


def test_a_swallowed_exception_is_raised_again():
    with TimeLimits({"Tuner": 0.05}.get, stuck_is_a_mistake, again_seconds=0.05) as limits:
        limits.start("Tuner")
        for _ in range(2):
            with contextlib.suppress(NodeTimeoutError):
                wait_for_signal()
        with pytest.raises(NodeTimeoutError):
            wait_for_signal()


def test_a_node_that_cannot_be_interrupted_is_reported():
    stuck = []
    reported = threading.Event()

    def end_process(error):
        stuck.append(error.node)
        reported.set()

    signals = {signal.SIGALRM}
    with TimeLimits({"Trainer": 0.05}.get, end_process, again_seconds=0.03, grace_seconds=0.05) as limits:
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # as long as nothing comes back to Python
        try:
            limits.start("Trainer")
            assert reported.wait(20)
        finally:
            limits.finish()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    assert stuck == ["Trainer"]


def test_other_alarms_reach_the_previous_handler_which_is_restored():
    seen = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: seen.append(number))
    try:
        with TimeLimits({"Trainer": 60.0}.get, stuck_is_a_mistake) as limits:
            limits.start("Trainer")
            signal.raise_signal(signal.SIGALRM)
        signal.raise_signal(signal.SIGALRM)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert seen == [signal.SIGALRM, signal.SIGALRM]


def test_outside_the_main_thread_a_warning_replaces_limits(caplog):
    def run():
        with TimeLimits({"Trainer": 0.01}.get, stuck_is_a_mistake) as limits:
            limits.start("Trainer")
            time.sleep(0.05)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "Trainer: its time limit is ignored" in caplog.text
