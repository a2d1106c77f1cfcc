"""Locks that allow one pusher at a time in an object store; in a local folder it is `hold_folder_lock`.

The owner of a lock renews it. A waiting process takes over a lock that has not changed for a whole lease by its own
clock: the owner is dead. Clocks of different machines are never compared. The owner calls `check_held` before it writes
each file and before it removes anything. The remaining risk is a single write that is executed after the lock was lost;
it cannot damage another version, because no version number is used twice.

`GenerationLock` is for storages that can create an object exclusively and replace it only in a known generation.
The lock is one object. Whoever creates it, or replaces the generation that has expired, has the lock; the owner has
lost it when the generation is no longer its own.

`ClaimLock` is for storages about which nothing is known but that a listing shows every object written before it. A
process that wants the lock writes a claim under a name of its own and then lists the claims. It has the lock when the
listing shows no other claim. If two processes claim at the same time, the one that lists later sees both claims, so
never both get the lock. If several processes see each other, the claim with the smallest name stays; the others
withdraw theirs and wait. Removing an expired claim gives nobody the lock, so several processes may do it at once. An
owner that was suspended for more than half a lease does not renew and regards the lock as lost.
"""

import contextlib
import errno
import json
import logging
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

from detloom.components.pusher.destination import LOCK_NAME
from detloom.components.storage.object_storage import Generation, ObjectStorage
from detloom.components.storage.storage import Storage
from detloom.schemas.reading.redact import redact
from detloom.trainer_module.files.folder_lock import MAX_OWNER_BYTES, Waiting, log_takeover

_POLL_SECONDS = 5.0
LEASE_SECONDS = 60.0
_MIN_RENEWAL_SECONDS = 1.0  # Cloud Storage allows one write of the same object per second
_WRONG_GENERATION = '"00000000000000000000000000000000"'  # an ETag that no object has
_LOGGER = logging.getLogger("detloom")


class LeasedLock(ABC):
    """A lock that expires unless it is renewed, as seen by one process. An instance is used once."""

    def __init__(
        self,
        owner: str,
        where: str,
        *,
        lease_seconds: float = LEASE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._owner, self._where, self._lease = owner, redact(where), lease_seconds
        self._clock, self._sleep = clock, sleep
        self._renewed_at = float("-inf")
        self._is_lost = False

    @contextlib.contextmanager
    def hold(self, limit_seconds: float) -> Iterator[Callable[[], None]]:
        """Wait for the lock, renew it in a thread and release it at the end; yield `check_held`.

        Raises:
            FolderBusyError: another process still has the lock after `limit_seconds`.
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
            try:
                self.release()
            except OSError as error:
                _LOGGER.warning(
                    "%s: the lock could not be released (%s); it expires within %g s.", self._where, error, self._lease
                )

    def check_held(self) -> None:
        """Raise OSError if another process may have the lock now."""
        if not self._is_lost:
            self.renew()
        if self._is_lost:
            raise OSError(f"{self._where}: this push was suspended for too long and lost its lock to another process")

    @abstractmethod
    def acquire(self, limit_seconds: float) -> None:
        """Return when this process has the lock."""

    @abstractmethod
    def renew(self) -> None:
        """Renew the lock, or note that it is lost."""

    @abstractmethod
    def release(self) -> None:
        """Release the lock if this process has it."""

    def _wait(self) -> None:
        self._sleep(min(_POLL_SECONDS, self._lease / 4))


class GenerationLock(LeasedLock):
    """A lock that is one object."""

    def __init__(
        self,
        storage: ObjectStorage,
        owner: str,
        *,
        lease_seconds: float = LEASE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(owner, storage.root, lease_seconds=lease_seconds, clock=clock, sleep=sleep)
        self._storage, self._id, self._num_writes = storage, uuid.uuid4().hex, 0
        self._generation: Generation = 0
        self._mutex = threading.Lock()  # between the thread that renews and `check_held`

    def acquire(self, limit_seconds: float) -> None:
        """Return when this process has created the object, or has replaced a generation that has expired.

        Raises:
            OSError: the storage does not compare generations.
        """
        waiting = Waiting(self._where, "push", limit_seconds, self._clock)
        seen: Generation = 0
        seen_at = 0.0
        while True:
            data, generation = self._storage.read_generation(LOCK_NAME, MAX_OWNER_BYTES)
            if generation != seen:
                seen, seen_at = generation, self._clock()
            is_expired = bool(generation) and self._clock() - seen_at >= self._lease
            if is_expired:
                log_takeover(self._where, "push", _value(data, "owner"))
            if is_expired or not generation:
                self._generation = self._write(generation)
                if self._generation:
                    self._check_compares()
                    return
            else:
                waiting.check_limit(_value(data, "owner"))
                self._wait()

    def renew(self) -> None:
        """Renew the lock by its generation; it is lost if another process has replaced or removed the object."""
        with self._mutex:
            if self._is_lost or self._clock() - self._renewed_at < _MIN_RENEWAL_SECONDS:
                return
            generation = self._write(self._generation)
            if not generation:  # perhaps an earlier renewal was executed although it ended with an error
                data, found = self._storage.read_generation(LOCK_NAME, MAX_OWNER_BYTES)
                generation = self._write(found) if _value(data, "id") == self._id else 0
            self._generation, self._is_lost = generation, not generation

    def release(self) -> None:
        if self._generation:
            self._storage.delete_generation(LOCK_NAME, self._generation)

    def _check_compares(self) -> None:
        """Raise OSError if the storage replaces the object although it must not exist, or has another generation."""
        if self._storage.always_compares:
            return
        for condition, wrong in (("If-None-Match", ""), ("If-Match", _WRONG_GENERATION)):
            if generation := self._write(wrong):
                self._generation = generation
                problem = f"the server ignores {condition}, without which two simultaneous pushes could mix their files"
                raise OSError(errno.ENOTSUP, problem, self._where)

    def _write(self, generation: Generation) -> Generation:
        """Replace this generation of the object; return the new one, or 0 or "" if another process was faster."""
        at = self._clock()
        self._num_writes += 1
        claim = json.dumps({"owner": self._owner, "id": self._id, "writes": self._num_writes}).encode()
        written = self._storage.write_generation(LOCK_NAME, claim, generation)
        self._renewed_at = at
        return written


class ClaimLock(LeasedLock):
    """A lock that needs nothing but listings."""

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
        super().__init__(owner, storage.root, lease_seconds=lease_seconds, clock=clock, sleep=sleep)
        self.name = f"{now():020d}-{uuid.uuid4().hex[:12]}"  # an earlier claim has a smaller name
        self._storage = storage
        self._seen: dict[str, tuple[bytes, float]] = {}  # claims of others: content, and when it was first seen
        self._num_renewals = 0
        self._is_claimed = False

    def acquire(self, limit_seconds: float) -> None:
        """Return when a listing made after our claim was written shows no other claim."""
        waiting = Waiting(self._where, "push", limit_seconds, self._clock)
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
                self.release()
            waiting.check_limit(others[min(others)])
            self._wait()

    def renew(self) -> None:
        """Renew the claim. The lock is lost if the renewal is too late or the claim was removed."""
        if self._clock() - self._renewed_at > self._lease / 2 or self._read(self.name) is None:
            self._is_lost = True
        else:
            self._write()

    def release(self) -> None:
        if self._is_claimed:
            self._storage.delete(f"{LOCK_NAME}/{self.name}")
            self._is_claimed = False

    def _write(self) -> None:
        at = self._clock()  # taken before the write, so that our lease ends before other processes regard it as expired
        self._num_renewals += 1
        claim = {"owner": self._owner, "renewals": self._num_renewals}
        self._storage.write(f"{LOCK_NAME}/{self.name}", json.dumps(claim).encode())
        self._renewed_at = at

    def _read(self, name: str) -> bytes | None:
        return self._storage.read(f"{LOCK_NAME}/{name}", MAX_OWNER_BYTES)

    def _live_claims(self) -> dict[str, str]:
        """Return the owner of each claim of another process, by claim name; remove expired claims."""
        owners = {}
        for name in self._storage.list_names(LOCK_NAME, with_hidden=True):
            data = None if name == self.name else self._read(name)
            if data is None:  # our own claim, or one that was just withdrawn
                continue
            before, since = self._seen.get(name, (None, 0.0))
            if data != before:
                self._seen[name] = data, self._clock()
            elif self._clock() - since >= self._lease:
                log_takeover(self._where, "push", _value(data, "owner"))
                self._storage.delete(f"{LOCK_NAME}/{name}")
                continue
            owners[name] = _value(data, "owner")
        return owners


def _value(claim: bytes, key: str) -> str:
    try:
        return str(json.loads(claim)[key])
    except (ValueError, KeyError, TypeError):
        return ""
