"""One pusher at a time in a folder on a file system that has locks.

The system holds the lock (flock) and frees it when its owner dies, whatever the way. The file's text only says who that
is: for the one who waits, and for the one who finds that the owner before died without finishing.
"""

import contextlib
import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from detloom.components.pusher.push_record import find_user
from detloom.schemas.errors import InputError
from detloom.schemas.redact import redact

_POLL_SECONDS = 0.2
_SAY_AGAIN_SECONDS = 60.0
_MAX_OWNER_BYTES = 4096
_LOGGER = logging.getLogger("detloom")


def describe_self(run_id: str = "") -> str:
    """JSON that says who holds a lock."""
    return json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "user": find_user(), "run": run_id})


def format_owner(text: str) -> str:
    """What `describe_self` wrote, for a message."""
    try:
        owner = json.loads(text)
        run = f", run {owner['run']}" if owner["run"] else ""
        return redact(f"{owner['user']}, process {owner['pid']} on {owner['host']}{run}")
    except (ValueError, KeyError, TypeError):
        return "another process"


class Waiting:
    """Says in the log that a lock is waited for, from time to time, and raises when it has been too long."""

    def __init__(self, where: str, limit_seconds: float, clock: Callable[[], float]) -> None:
        self._where, self._limit, self._clock = where, limit_seconds, clock
        self._started, self._said = clock(), float("-inf")

    def go_on(self, owner: str) -> None:
        """Raises InputError, naming the owner, once the limit is over."""
        now = self._clock()
        if now - self._started >= self._limit:
            raise InputError(
                f"{self._where}: for {self._limit:g} s another push has not ended ({format_owner(owner)}); nothing was "
                "pushed. Look whether it still runs; push again when it has ended."
            )
        if now - self._said >= _SAY_AGAIN_SECONDS:
            _LOGGER.info("%s: waiting for another push to end (%s).", self._where, format_owner(owner))
            self._said = now


def log_takeover(where: str, owner: str) -> None:
    _LOGGER.warning(
        "%s: the push before this one was cut off (%s); its lock is taken over.", where, format_owner(owner)
    )


@contextlib.contextmanager
def hold_folder_lock(
    path: Path,
    owner: str,
    limit_seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """Hold the lock of this file, which is made where it is missing and never removed.

    Raises:
        InputError: another process has held it for `limit_seconds`.
        OSError: the file cannot be written.
    """
    with open(path, "a+", encoding="utf-8", errors="replace") as file:
        waiting = Waiting(str(path.parent), limit_seconds, clock)
        while not _try_flock(file.fileno()):
            waiting.go_on(_read(path))
            sleep(_POLL_SECONDS)
        before = _read(path)
        if before:
            log_takeover(str(path.parent), before)
        file.truncate(0)
        file.write(owner)
        file.flush()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                file.truncate(0)


def _try_flock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(path: Path) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(_MAX_OWNER_BYTES)
