"""What a training does when it is told to end: save and go, within the step that it is in."""

import contextlib
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Preempted(Exception):
    """Training was told to end and has saved its state; the same call goes on from there.

    Attributes:
        signal_number: what it was told by.
        step: at which it was saved.
    """

    def __init__(self, signal_number: int, step: int, where: str) -> None:
        name = signal.Signals(signal_number).name
        super().__init__(
            f"Training ended by {name}; saved at step {step} in {where}. The same command goes on from there."
        )
        self.signal_number, self.step = signal_number, step


class StopRequest:
    """Whether a signal has come; made by `stop_on_signals`."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def __bool__(self) -> bool:
        return self.signal_number is not None


@contextlib.contextmanager
def stop_on_signals(on_signal: Callable[[], None]) -> Iterator[StopRequest]:
    """While it is open, SIGTERM and the first Ctrl-C do not end the process, but call `on_signal` at once.

    That happens in a thread of its own: Python's own handlers wait until the main thread is back from TensorFlow, which
    may be many steps later. A second Ctrl-C raises KeyboardInterrupt. Outside the main thread, where Python allows no
    handlers, signals do what they did before.
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
        while number := os.read(read_end, 1)[0]:  # 0 is ours: the end
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
