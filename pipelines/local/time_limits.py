"""Enforce time limits of nodes that run in this process.

A thread waits for the limit and then sends SIGALRM to this process. The handler raises an exception in the main thread,
where nodes run. It does so repeatedly until the node ends, because an exception can get lost (in a destructor, in an
`except Exception`). A call that never returns to Python sees no exception; after a grace period the process is ended.
"""

import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from detloom.schemas.reading.format_duration import format_duration

_AGAIN_SECONDS = 15.0
_GRACE_SECONDS = 120.0
_LOGGER = logging.getLogger("detloom")


class NodeTimeoutError(Exception):
    """A node exceeded its time limit.

    Attributes:
        node: its id.
        seconds: the limit.
    """

    def __init__(self, node: str, seconds: float) -> None:
        super().__init__(f"it took longer than its time limit of {format_duration(seconds)}")
        self.node, self.seconds = node, seconds


class TimeLimits:
    """A context manager for the main thread that limits one node after the other.

    Attributes:
        exceeded: the error of the current or last node; None if it is within its limit.
    """

    def __init__(
        self,
        limit_of: Callable[[str], float | None],
        on_stuck: Callable[[NodeTimeoutError], None],
        *,
        again_seconds: float = _AGAIN_SECONDS,
        grace_seconds: float = _GRACE_SECONDS,
    ) -> None:
        """Store the limits.

        Args:
            limit_of: returns a node's limit in seconds.
            on_stuck: called in the watching thread if a node still runs `grace_seconds` after its limit; must end the
                process.
        """
        self.exceeded: NodeTimeoutError | None = None
        self._limit_of, self._on_stuck = limit_of, on_stuck
        self._again, self._grace = again_seconds, grace_seconds
        self._finished, self._was_sent = threading.Event(), False
        self._before: Any = None
        # Python allows signal handlers only there
        self._can_raise = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> "TimeLimits":
        if self._can_raise:
            self._before = signal.signal(signal.SIGALRM, self._on_alarm)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.finish()
        if self._can_raise:
            signal.signal(signal.SIGALRM, self._before)

    def start(self, node: str) -> None:
        """Start the time limit of a node and end that of the previous node."""
        self.finish()
        self.exceeded, self._finished = None, threading.Event()
        seconds = self._limit_of(node)
        if seconds is None:
            return
        if not self._can_raise:
            _LOGGER.warning("%s: its time limit is ignored, because it runs outside the main thread.", node)
            return
        watch = threading.Thread(
            target=self._watch, args=(node, seconds, self._finished), name=f"time limit of {node}", daemon=True
        )
        watch.start()

    def finish(self) -> None:
        """End the time limit of the current node."""
        self._finished.set()

    def _watch(self, node: str, seconds: float, finished: threading.Event) -> None:
        if finished.wait(seconds):
            return
        self.exceeded = NodeTimeoutError(node, seconds)
        waited = 0.0
        while waited < self._grace:
            self._was_sent = True
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
            if finished.wait(min(self._again, self._grace - waited)):
                return
            waited += self._again
        self._on_stuck(self.exceeded)

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        is_ours, self._was_sent = self._was_sent, False
        if is_ours and self.exceeded is not None and not self._finished.is_set():
            raise self.exceeded
        if not is_ours and callable(self._before):
            self._before(number, frame)
