"""What both ways of sending share: a failure that can be told, a limit of time, and another try."""

import queue
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
WAITS_SECONDS = (1.0, 4.0)  # before the second and the third try


class NotSentError(Exception):
    """A message that could not be sent.

    The text is a part of a sentence and holds neither address nor secret, whatever the server or a library said.

    Attributes:
        may_pass: whether another try may succeed.
    """

    def __init__(self, reason: str, *, may_pass: bool = False) -> None:
        super().__init__(reason)
        self.may_pass = may_pass


def call_within(seconds: float, function: Callable[[], T]) -> T:
    """What the function returns or raises.

    A socket's timeout holds for one read, so that a server which sends a byte now and then would never end; and the
    look-up of a name has none. This holds for all.

    Raises:
        NotSentError: it takes longer. It then goes on in a thread that ends with the process.
    """
    outcome: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            outcome.put((function(), None))
        except BaseException as error:  # is raised where it is waited for
            outcome.put((None, error))

    threading.Thread(target=work, daemon=True).start()
    try:
        value, error = outcome.get(timeout=seconds)
    except queue.Empty:
        raise NotSentError(f"no answer within {seconds:g} s") from None
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # without an error it is the function's


def try_again(function: Callable[[], None], waits_seconds: Sequence[float] = WAITS_SECONDS) -> None:
    """Call it until it succeeds, at most once more than there are waits.

    Raises:
        NotSentError: that of the last try.
    """
    for wait_seconds in waits_seconds:
        try:
            return function()
        except NotSentError as error:
            if not error.may_pass:
                raise
        time.sleep(wait_seconds)
    try:
        return function()
    except NotSentError as error:
        raise NotSentError(f"{error}, {len(waits_seconds) + 1} tries") from None


def trusted_authorities() -> ssl.SSLContext:
    """Certificates are verified against the system's authorities."""
    return ssl.create_default_context()
