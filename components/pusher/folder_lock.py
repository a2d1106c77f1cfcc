"""One pusher at a time in a folder on a file system that has locks.

The system holds the lock (flock) and frees it when its owner dies, whatever the way. The file's text only says who that
is: for the one who waits, and for the one who finds that the owner before died without finishing.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import stat
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
) -> Iterator[Callable[[], None]]:
    """Hold the lock of this file, which is made where it is missing and never removed.

    Yields a function that raises OSError if somebody has removed the file all the same: then another push may run.

    Raises:
        InputError: another process has held it for `limit_seconds`.
        OSError: the file cannot be written, or is none.
    """
    waiting = Waiting(str(path.parent), limit_seconds, clock)
    descriptor = _open(path)
    try:
        while not (is_ours := _try_flock(descriptor)) or not _is_at(descriptor, path):
            if not is_ours:
                waiting.go_on(_read(descriptor))
                sleep(_POLL_SECONDS)
            os.close(descriptor)  # also a file that was removed meanwhile: its lock keeps nobody out
            descriptor = -1
            descriptor = _open(path)
        before = _read(descriptor)
        if before:
            log_takeover(str(path.parent), before)
        os.truncate(descriptor, 0)
        os.write(descriptor, owner.encode())

        def check_held() -> None:
            if not _is_at(descriptor, path):
                raise OSError(errno.ESTALE, "somebody has removed or replaced the lock's file meanwhile", str(path))

        try:
            yield check_held
        finally:
            with contextlib.suppress(OSError):
                os.truncate(descriptor, 0)
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _open(path: Path) -> int:
    """Not through a link: what it leads to would be emptied."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is no plain file", str(path))
    return descriptor


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _try_flock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(descriptor: int) -> str:
    return os.pread(descriptor, _MAX_OWNER_BYTES, 0).decode("utf-8", errors="replace")
