import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import detloom

# What the child does, given the folder that it may write to.
FINISHES = "return 7"
SLEEPS = "time.sleep(600)"
SAVES = """
    from detloom.trainer_module.preemption import stop_on_signals
    told = threading.Event()
    with stop_on_signals(told.set):
        (folder / "ready").write_text("")
        told.wait(600)
        (folder / "saved").write_text("")
    return 143
"""
HOLDS_ON = """
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


def test_a_node_that_ends_in_time_keeps_its_exit_code(start):
    process = start(FINISHES, 600)
    assert process.wait(60) == 7
    assert process.stderr.read() == ""


def test_a_node_that_does_not_is_ended(start):
    process = start(SLEEPS, 0.5)
    assert process.wait(60) == 124
    assert process.stderr.read() == "error: the time limit of 0.5 seconds has passed; the node is ended.\n"


def test_it_may_save_its_state_before(start, tmp_path):
    process = start(SAVES, 2)
    assert process.wait(60) == 124
    assert (tmp_path / "saved").exists()


def test_what_does_not_listen_is_killed_with_all_that_it_started(start, tmp_path):
    process = start(HOLDS_ON, 3, grace_seconds=0.5)
    assert process.wait(60) == 124
    assert is_gone(int(wait_for(tmp_path / "helper")))


def is_gone(pid: int) -> bool:
    """Or a zombie, where nobody adopts it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_node_that_finishes_meanwhile_has_finished(start):
    assert start(JUST_FINISHES, 2).wait(60) == 0


def test_the_signal_of_a_cluster_reaches_the_node(start, tmp_path):
    process = start(SAVES, 600)
    wait_for(tmp_path / "ready")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert (tmp_path / "saved").exists()
    assert "time limit" not in process.stderr.read()


def test_a_node_that_the_system_kills_is_told_from_one_that_fails(start):
    assert start(IS_KILLED, 600).wait(60) == 137
