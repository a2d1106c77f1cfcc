"""A lock that allows one pusher at a time in a bucket; in a local folder it is `hold_folder_lock`.

The lock is one object, which names its owner and is empty if there is none. A process takes it by replacing the
generation in which the object was missing or empty, so of several processes, one succeeds. The owner renews it by its
generation. A waiting process takes over a lock that has not changed for a whole lease by its own clock: the owner is
dead. Clocks of different machines are never compared. An owner that was suspended finds another generation, and has
lost the lock.

The owner calls `check_held` before it writes each file and before it removes anything. The remaining risk is a single
write that is executed after the lock was lost; it cannot damage another version, because no version number is used
twice.
"""

import contextlib
import errno
import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator

from detloom.components.pusher.destination import LOCK_NAME
from detloom.components.storage.bucket import BucketStorage, Generation
from detloom.schemas.reading.redact import redact
from detloom.trainer_module.files.folder_lock import MAX_OWNER_BYTES, Waiting, log_takeover

_POLL_SECONDS = 5.0
LEASE_SECONDS = 60.0
_MIN_RENEWAL_SECONDS = 1.0  # Cloud Storage allows one write of the same object per second
_NO_GENERATION: Generation = {"e_tag": '"00000000000000000000000000000000"', "version": "1"}  # no object has it
_LOGGER = logging.getLogger("detloom")


class BucketLock:
    """A lock as seen by one process. An instance is used once."""

    def __init__(
        self,
        storage: BucketStorage,
        owner: str,
        *,
        lease_seconds: float = LEASE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._storage, self._where, self._owner, self._lease = storage, redact(storage.root), owner, lease_seconds
        self._clock, self._sleep = clock, sleep
        self._id, self._num_writes = uuid.uuid4().hex, 0
        self._generation: Generation = None  # the one that this process wrote
        self._renewed_at = float("-inf")
        self._is_lost = False
        self._mutex = threading.Lock()  # between the thread that renews and `check_held`

    @contextlib.contextmanager
    def hold(self, limit_seconds: float) -> Iterator[Callable[[], None]]:
        """Wait for the lock, renew it in a thread and release it at the end; yield `check_held`.

        Raises:
            FolderBusyError: another process still has the lock after `limit_seconds`.
            OSError: the storage does not compare generations.
        """
        stop = threading.Event()

        def renew_until_stopped() -> None:
            while not stop.wait(self._lease / 4) and not self._is_lost:
                with contextlib.suppress(OSError):  # one failed renewal does not lose the lock
                    self.renew()

        thread = threading.Thread(target=renew_until_stopped, name="renew the push lock", daemon=True)
        try:
            self.acquire(limit_seconds)
            thread.start()
            yield self.check_held
        finally:
            stop.set()
            if thread.ident is not None:
                thread.join()
            try:
                self.release()
            except OSError as error:
                _LOGGER.warning(
                    "%s: the lock could not be released (%s); it expires within %g s.", self._where, error, self._lease
                )

    def acquire(self, limit_seconds: float) -> None:
        """Return when this process has replaced a missing, empty or expired object."""
        waiting = Waiting(self._where, "push", limit_seconds, self._clock)
        seen: Generation = None
        seen_at = 0.0
        while self._generation is None:
            data, generation = self._storage.read_generation(LOCK_NAME, MAX_OWNER_BYTES)
            if generation != seen:
                seen, seen_at = generation, self._clock()
            is_expired = bool(data) and self._clock() - seen_at >= self._lease
            if is_expired:
                log_takeover(self._where, "push", _value(data, "owner"))
            if is_expired or not data:
                self._generation = self._write(generation)
            if self._generation is None:
                waiting.check_limit(_value(data, "owner"))
                self._sleep(min(_POLL_SECONDS, self._lease / 4))
        if self._storage.root.startswith("s3://"):  # servers with the S3 API differ; Google and Azure always compare
            self._check_compares()

    def check_held(self) -> None:
        """Raise OSError if another process may have the lock now."""
        self.renew()
        if self._is_lost:
            raise OSError(f"{self._where}: this push was suspended for too long and lost its lock to another process")

    def renew(self) -> None:
        """Renew the lock by its generation; it is lost if another process has replaced the object."""
        with self._mutex:
            if self._is_lost or self._clock() - self._renewed_at < _MIN_RENEWAL_SECONDS:
                return
            generation = self._write(self._generation)
            if generation is None:  # perhaps an earlier renewal was executed although it ended with an error
                data, current = self._storage.read_generation(LOCK_NAME, MAX_OWNER_BYTES)
                generation = self._write(current) if _value(data, "id") == self._id else None
            self._generation, self._is_lost = generation, generation is None

    def release(self) -> None:
        """Empty the object if this process has the lock."""
        if self._generation is not None:
            self._storage.write_generation(LOCK_NAME, b"", self._generation)

    def _check_compares(self) -> None:
        """Raise OSError if the server replaces an object that must not exist, or that has another generation."""
        for condition, wrong in (("If-None-Match", None), ("If-Match", _NO_GENERATION)):
            if (generation := self._write(wrong)) is not None:
                self._generation = generation
                problem = f"the server ignores {condition}, without which two simultaneous pushes could mix their files"
                raise OSError(errno.ENOTSUP, problem, self._where)

    def _write(self, generation: Generation) -> Generation:
        """Replace this generation of the object; return the new one, or None if another process was faster."""
        at = self._clock()
        self._num_writes += 1
        claim = json.dumps({"owner": self._owner, "id": self._id, "writes": self._num_writes}).encode()
        written = self._storage.write_generation(LOCK_NAME, claim, generation)
        self._renewed_at = at
        return written


def _value(claim: bytes, key: str) -> str:
    try:
        return str(json.loads(claim)[key])
    except (ValueError, KeyError, TypeError):
        return ""
