"""Graceful stop of training on a signal: save within the current step and end."""

import contextlib
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Preempted(Exception):
    """Training received a signal and saved its state; the same call resumes it.

    Attributes:
        signal_number: the signal.
        step: the saved step.
    """

    def __init__(self, signal_number: int, step: int, where: str) -> None:
        name = signal.Signals(signal_number).name
        super().__init__(f"Training stopped by {name}; saved at step {step} in {where}. The same command resumes it.")
        self.signal_number, self.step = signal_number, step


class StopRequest:
    """True once a signal has arrived; created by `stop_on_signals`."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def __bool__(self) -> bool:
        return self.signal_number is not None


@contextlib.contextmanager
def stop_on_signals(on_signal: Callable[[], None]) -> Iterator[StopRequest]:
    """Within the block, SIGTERM and the first Ctrl-C call `on_signal` immediately instead of ending the process.

    A separate thread does this: Python runs its own handlers only when the main thread returns from TensorFlow, which
    may be many steps later. A second Ctrl-C raises KeyboardInterrupt. Outside the main thread, where Python allows no
    handlers, signals keep their handlers.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    interrupts = itertools.count(1)

    def note(number: int, frame: FrameType | None) -> None:
        request.signal_number = request.signal_number or number
        if number == signal.SIGINT and next(interrupts) > 1:
            raise KeyboardInterrupt

    def watch() -> None:
        while number := os.read(read_end, 1)[0]:  # 0 is written below to end the thread
            if number in SIGNALS:
                request.signal_number = request.signal_number or number
                on_signal()

    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    before = {number: signal.signal(number, note) for number in SIGNALS}
    wakeup_before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    watcher = threading.Thread(target=watch, name="stop-on-signals", daemon=True)
    watcher.start()
    try:
        yield request
    finally:
        signal.set_wakeup_fd(wakeup_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.write(write_end, b"\0")
        watcher.join()
        os.close(read_end)
        os.close(write_end)
