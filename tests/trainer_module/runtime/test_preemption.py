import os
import signal
import threading

import pytest

from detloom.trainer_module.runtime.preemption import stop_on_signals


def wait_for(event):
    assert event.wait(10), "the signal was not received"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_is_recorded_and_does_not_end_the_process(number):
    called = threading.Event()
    with stop_on_signals(called.set) as stop:
        assert not stop
        os.kill(os.getpid(), number)
        wait_for(called)
    assert stop.signal_number == number


def test_signal_is_handled_while_the_main_thread_is_in_c_code():
    """The main thread waits for a lock in C; Python's own handlers would run only afterwards."""
    called, released = threading.Event(), threading.Lock()
    released.acquire()

    def release_when_called():
        wait_for(called)
        released.release()

    with stop_on_signals(called.set):
        waiter = threading.Thread(target=release_when_called)
        waiter.start()
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
        assert released.acquire(timeout=10)
        waiter.join()


def test_second_interrupt_raises():
    with stop_on_signals(lambda: None):
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_handlers_are_restored():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with stop_on_signals(lambda: None):
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] != before
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert not [thread for thread in threading.enumerate() if thread.name == "stop-on-signals"]


def test_handlers_are_unchanged_outside_the_main_thread():
    seen = []

    def body():
        with stop_on_signals(lambda: None) as stop:
            seen.append(bool(stop))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert seen == [False]
