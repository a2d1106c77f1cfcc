import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import detloom

pytestmark = pytest.mark.slow  # subprocesses and kills
# The code of the child; `folder` is a folder that it can write to.
FINISHES = "return 7"
SLEEPS = "time.sleep(600)"
SAVES = """
    from detloom.trainer_module.runtime.preemption import stop_on_signals
    received = threading.Event()
    with stop_on_signals(received.set):
        (folder / "ready").write_text("")
        received.wait(600)
        (folder / "saved").write_text("")
    return 143
"""
IGNORES_SIGNALS = """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    helper = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, 1); time.sleep(600)"])
    (folder / "helper").write_text(str(helper.pid))
    time.sleep(600)
"""
IS_KILLED = "os.kill(os.getpid(), signal.SIGKILL)"
JUST_FINISHES = """
    def finish(*_):
        sys.exit(0)
    signal.signal(signal.SIGTERM, finish)
    time.sleep(600)
"""
SCRIPT = """
import os, signal, subprocess, sys, threading, time
from pathlib import Path
from detloom.pipelines.container.time_limit import run_limited
folder = Path(sys.argv[1])
def work():
    {work}
sys.exit(run_limited(work, float(sys.argv[2]), float(sys.argv[3])))
"""


@pytest.fixture
def start(tmp_path):
    processes = []

    def start_it(work: str, seconds: float, grace_seconds: float = 30.0) -> subprocess.Popen:
        script = SCRIPT.format(work=work.strip())
        environment = {**os.environ, "PYTHONPATH": str(Path(detloom.__file__).parents[1])}
        arguments = [sys.executable, "-c", script, str(tmp_path), str(seconds), str(grace_seconds)]
        processes.append(subprocess.Popen(arguments, env=environment, stderr=subprocess.PIPE, text=True))
        return processes[-1]

    yield start_it
    for process in processes:
        process.kill()
        process.communicate()


def wait_for(path: Path) -> str:
    give_up = time.monotonic() + 60
    while not path.exists() or (path.name == "helper" and not path.read_text()):
        assert time.monotonic() < give_up, f"{path} is not there"
        time.sleep(0.02)
    return path.read_text()


def test_a_node_within_its_limit_keeps_its_exit_code(start):
    process = start(FINISHES, 600)
    assert process.wait(60) == 7
    assert process.stderr.read() == ""


def test_a_node_over_its_limit_is_ended(start):
    process = start(SLEEPS, 0.5)
    assert process.wait(60) == 124
    assert "0.5 s" in process.stderr.read()


def test_a_node_over_its_limit_can_save_its_state(start, tmp_path):
    process = start(SAVES, 2)
    assert process.wait(60) == 124
    assert (tmp_path / "saved").exists()


def test_a_node_that_ignores_signals_is_killed_with_its_children(start, tmp_path):
    process = start(IGNORES_SIGNALS, 3, grace_seconds=0.5)
    assert process.wait(60) == 124
    assert is_gone(int(wait_for(tmp_path / "helper")))


def is_gone(pid: int) -> bool:
    """Return whether the process has ended or is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_node_that_finishes_in_the_grace_period_succeeds(start):
    assert start(JUST_FINISHES, 2).wait(60) == 0


def test_sigterm_is_forwarded_to_the_node(start, tmp_path):
    process = start(SAVES, 600)
    wait_for(tmp_path / "ready")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert (tmp_path / "saved").exists()
    assert "time limit" not in process.stderr.read()


def test_a_killed_node_has_another_exit_code_than_a_failed_one(start):
    assert start(IS_KILLED, 600).wait(60) == 137
