"""Locks that allow one pusher at a time: `flock` in a local folder, claims in an object store.

In a local folder the operating system releases the lock when its owner dies. The text in the lock file names the owner,
for the messages of a process that waits and of one that finds the lock of a killed push.

An object store has no lock, no rename and no exclusive creation. It must only guarantee that a listing shows every
object written before it (Google Cloud Storage and S3 do). A process that wants the lock writes a claim under a name of
its own and then lists the claims. It has the lock when the listing shows no other claim. If two processes claim at the
same time, the one that lists later sees both claims, so never both get the lock. If several processes see each other,
the claim with the smallest name stays; the others withdraw theirs and wait.

The owner renews its claim. A waiting process removes a claim whose text has not changed for a whole lease by its own
clock: the owner is dead. Removing a claim gives nobody the lock, so several processes may do it at once. Clocks of
different machines are never compared. An owner that was suspended for more than half a lease does not renew and regards
the lock as lost. It calls `check_held` before it writes each file and before it removes anything. The remaining risk is
a single write that takes longer than half a lease; it cannot damage another version, because no version number is used
twice.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import stat
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from detloom.components.pusher.destination import LOCK_NAME
from detloom.components.pusher.manifest import find_user
from detloom.components.storage.storage import Storage
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import redact

_POLL_SECONDS = 0.2
_SAY_AGAIN_SECONDS = 60.0
_MAX_OWNER_BYTES = 4096
_LOGGER = logging.getLogger("detloom")
LEASE_SECONDS = 60.0
_CLAIM_POLL_SECONDS = 5.0


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
    """Logs at intervals that a lock is awaited, and raises when the limit is over."""

    def __init__(self, where: str, limit_seconds: float, clock: Callable[[], float]) -> None:
        self._where, self._limit, self._clock = where, limit_seconds, clock
        self._started, self._said = clock(), float("-inf")

    def check_limit(self, owner: str) -> None:
        """Log a message from time to time; raise InputError with the owner once the limit is over."""
        now = self._clock()
        if now - self._started >= self._limit:
            raise InputError(
                f"{self._where}: another push was still running after {self._limit:g} s ({format_owner(owner)}); "
                "nothing was pushed. Check whether it still runs, and push again when it has ended."
            )
        if now - self._said >= _SAY_AGAIN_SECONDS:
            _LOGGER.info("%s: waiting for another push to end (%s).", self._where, format_owner(owner))
            self._said = now


def log_takeover(where: str, owner: str) -> None:
    _LOGGER.warning(
        "%s: the previous push was interrupted (%s); this one takes over its lock.", where, format_owner(owner)
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
    """Hold the lock of this file. The file is created if it is missing, and never removed.

    Yields a function that raises OSError if somebody removed the file, because another push could then run.

    Raises:
        InputError: another process still holds the lock after `limit_seconds`.
        OSError: the file cannot be written, or is not a regular file.
    """
    waiting = Waiting(str(path.parent), limit_seconds, clock)
    descriptor = _open_lock_file(path)
    try:
        while not (is_ours := _try_flock(descriptor)) or not _is_at(descriptor, path):
            if not is_ours:
                waiting.check_limit(_read_owner(descriptor))
                sleep(_POLL_SECONDS)
            os.close(descriptor)  # reopen: the lock of a file that was removed meanwhile excludes nobody
            descriptor = -1
            descriptor = _open_lock_file(path)
        before = _read_owner(descriptor)
        if before:
            log_takeover(str(path.parent), before)
        os.truncate(descriptor, 0)
        os.write(descriptor, owner.encode())

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


def _try_flock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_owner(descriptor: int) -> str:
    return os.pread(descriptor, _MAX_OWNER_BYTES, 0).decode("utf-8", errors="replace")


class ClaimLock:
    """The lock as seen by one process. An instance is used once."""

    def __init__(
        self,
        storage: Storage,
        owner: str,
        *,
        lease_seconds: float = LEASE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], int] = time.time_ns,
    ) -> None:
        self.name = f"{now():020d}-{uuid.uuid4().hex[:12]}"  # an earlier claim has a smaller name
        self._storage, self._owner, self._lease = storage, owner, lease_seconds
        self._where = redact(storage.root)
        self._clock, self._sleep = clock, sleep
        self._seen: dict[str, tuple[str, float]] = {}  # claims of others: text, and when it was first seen
        self._num_renewals, self._renewed_at = 0, float("-inf")
        self._is_claimed = self._is_lost = False

    @contextlib.contextmanager
    def hold(self, limit_seconds: float) -> Iterator[Callable[[], None]]:
        """Wait for the lock, renew it in a thread and release it at the end; yield `check_held`.

        Raises:
            InputError: another process still has the lock after `limit_seconds`.
        """
        stop = threading.Event()

        def renew_until_stopped() -> None:
            while not stop.wait(self._lease / 4) and not self._is_lost:
                with contextlib.suppress(OSError):  # one failed renewal does not lose the lock
                    self.renew()

        try:
            self.acquire(limit_seconds)
            thread = threading.Thread(target=renew_until_stopped, name="renew the push lock", daemon=True)
            thread.start()
            try:
                yield self.check_held
            finally:
                stop.set()
                thread.join()
        finally:
            self._withdraw()

    def acquire(self, limit_seconds: float) -> None:
        """Return when a listing made after our claim was written shows no other claim."""
        waiting = Waiting(self._where, limit_seconds, self._clock)
        while True:
            if self._is_claimed:
                self._write()  # before the listing, because another process may have removed it as expired
            others = self._live_claims()
            if not others:
                if self._is_claimed:
                    return
                self._is_claimed = True
                continue
            if self._is_claimed and min(others) < self.name:
                self._withdraw()
            waiting.check_limit(others[min(others)])
            self._sleep(min(_CLAIM_POLL_SECONDS, self._lease / 4))

    def renew(self) -> None:
        """Renew the claim. The lock is lost if the renewal is too late or the claim was removed."""
        if self._clock() - self._renewed_at > self._lease / 2 or self._read(self.name) is None:
            self._is_lost = True
        else:
            self._write()

    def check_held(self) -> None:
        """Raise OSError if another process may have the lock now."""
        if not self._is_lost:
            self.renew()
        if self._is_lost:
            raise OSError(
                f"{self._where}: this push was suspended for too long and lost its lock; nothing was changed. "
                "Push again."
            )

    def _write(self) -> None:
        at = self._clock()  # taken before the write, so that our lease ends before other processes regard it as expired
        self._num_renewals += 1
        claim = {"owner": self._owner, "renewals": self._num_renewals}
        self._storage.write(f"{LOCK_NAME}/{self.name}", json.dumps(claim).encode())
        self._renewed_at = at

    def _read(self, name: str) -> str | None:
        data = self._storage.read(f"{LOCK_NAME}/{name}", _MAX_OWNER_BYTES)
        return None if data is None else data.decode("utf-8", errors="replace")

    def _withdraw(self) -> None:
        if self._is_claimed:
            self._is_claimed = False
            try:
                self._storage.delete(f"{LOCK_NAME}/{self.name}")
            except OSError as error:
                _LOGGER.warning(
                    "%s: the lock could not be released (%s); it expires within %g s.",
                    self._where,
                    error,
                    self._lease,
                )

    def _live_claims(self) -> dict[str, str]:
        """Return the owner of each claim of another process, by claim name; remove expired claims."""
        owners = {}
        for name in self._storage.list_names(LOCK_NAME, with_hidden=True):
            text = None if name == self.name else self._read(name)
            if text is None:  # our own claim, or one that was just withdrawn
                continue
            before, since = self._seen.get(name, (None, 0.0))
            if text != before:
                self._seen[name] = text, self._clock()
            elif self._clock() - since >= self._lease:
                log_takeover(self._where, _owner_of(text))
                self._storage.delete(f"{LOCK_NAME}/{name}")
                continue
            owners[name] = _owner_of(text)
        return owners


def _owner_of(text: str) -> str:
    try:
        return str(json.loads(text)["owner"])
    except (ValueError, KeyError, TypeError):
        return ""
