"""A lock that one process holds on a local folder at a time: a run, an ingestion, a push.

The operating system holds the lock (flock) and releases it when the process ends in any way. The lock file names the
owner. If a machine is lost, NFS version 4 releases its locks after a lease, by default 90 s, and version 3 never
(`man 5 nfs`): then the file has to be deleted, which frees the lock.
"""

import contextlib
import errno
import fcntl
import getpass
import json
import logging
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from detloom.schemas.errors import ExitCode, InputError
from detloom.schemas.reading.redact import redact

MAX_OWNER_BYTES = 4096
_POLL_SECONDS = 0.2
_SAY_AGAIN_SECONDS = 60.0
_LOGGER = logging.getLogger("detloom")


class FolderBusyError(InputError):
    """Another process holds the lock."""

    exit_code = ExitCode.BUSY


def find_user() -> str:
    """Return the user of this process; in a container the user may have no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return f"uid {os.getuid()}"


def describe_self(run_id: str = "") -> str:
    """Return JSON that identifies this process as the owner of a lock."""
    return json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "user": find_user(), "run": run_id})


def format_owner(text: str) -> str:
    """Format the JSON of `describe_self` for a message."""
    try:
        owner = json.loads(text)
        run = f", run {owner['run']}" if owner["run"] else ""
        return redact(f"{owner['user']}, process {owner['pid']} on {owner['host']}{run}")
    except (ValueError, KeyError, TypeError):
        return "another process"


class Waiting:
    """Logs at intervals that a lock is awaited, and raises when the limit is over.

    Attributes:
        what: what the lock allows once at a time, such as "push".
        advice: further sentence for the error, with a space before it.
    """

    def __init__(
        self, where: str, what: str, limit_seconds: float, clock: Callable[[], float], *, advice: str = ""
    ) -> None:
        self._where, self._what, self._limit, self._clock, self._advice = where, what, limit_seconds, clock, advice
        self._started, self._said = clock(), float("-inf")

    def check_limit(self, owner: str) -> None:
        """Log a message from time to time; raise FolderBusyError with the owner once the limit is over."""
        now = self._clock()
        if now - self._started >= self._limit:
            after = f" after {self._limit:g} s" if self._limit else ""
            raise FolderBusyError(
                f"{self._where}: another {self._what} is still in progress{after} ({format_owner(owner)}); nothing was "
                f"changed. Wait until it has ended and try again, or use another folder.{self._advice}"
            )
        if now - self._said >= _SAY_AGAIN_SECONDS:
            _LOGGER.info("%s: waiting for another %s to end (%s).", self._where, self._what, format_owner(owner))
            self._said = now


def log_takeover(where: str, what: str, owner: str) -> None:
    _LOGGER.warning(
        "%s: the previous %s was interrupted (%s); this one takes over its lock.", where, what, format_owner(owner)
    )


@contextlib.contextmanager
def hold_folder_lock(
    path: Path,
    what: str,
    *,
    owner: str = "",
    limit_seconds: float = 0.0,
    is_required: bool = True,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Callable[[], None]]:
    """Hold the lock of this file. The file is created if it is missing, and never removed.

    Yields a function that raises OSError if somebody removed the file: another process could take the lock then.

    Args:
        what: what the lock allows once at a time, for messages, such as "push".
        owner: as `describe_self` returns; "" is this process.
        is_required: raise OSError if the file system has no locks; otherwise a warning is logged.

    Raises:
        FolderBusyError: another process still holds the lock after `limit_seconds`.
        OSError: the file cannot be written, or is not a regular file.
    """
    advice = f" If its machine is lost, NFS may keep the lock: then delete {path}."
    waiting = Waiting(str(path.parent), what, limit_seconds, clock, advice=advice)
    descriptor = _open_lock_file(path)
    try:
        while not (is_ours := _try_flock(descriptor, path, is_required)) or not _is_at(descriptor, path):
            if not is_ours:
                waiting.check_limit(_read_owner(descriptor))
                sleep(_POLL_SECONDS)
            os.close(descriptor)  # reopen: the lock of a file that was removed meanwhile excludes nobody
            descriptor = -1
            descriptor = _open_lock_file(path)
        before = _read_owner(descriptor)
        if before:
            log_takeover(str(path.parent), what, before)
        os.truncate(descriptor, 0)
        os.write(descriptor, (owner or describe_self()).encode())

        def check_held() -> None:
            if not _is_at(descriptor, path):
                raise OSError(errno.ESTALE, "the lock file was removed or replaced", str(path))

        try:
            yield check_held
        finally:
            with contextlib.suppress(OSError):
                os.truncate(descriptor, 0)
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _open_lock_file(path: Path) -> int:
    """Open the lock file, but not through a symbolic link, whose target would be truncated."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return descriptor


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _try_flock(descriptor: int, path: Path, is_required: bool) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if is_required:
            raise
        _LOGGER.warning("%s: cannot be locked (%s); make sure that no other process uses it.", path.parent, error)
    return True


def _read_owner(descriptor: int) -> str:
    return os.pread(descriptor, MAX_OWNER_BYTES, 0).decode("utf-8", errors="replace")
