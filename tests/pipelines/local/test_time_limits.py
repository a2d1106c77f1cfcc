import contextlib
import signal
import threading
import time

import pytest

from detloom.pipelines.local.time_limits import NodeTimeoutError, TimeLimits


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
