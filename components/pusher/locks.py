"""The lock that allows one pusher at a time in an object store; in a local folder it is `hold_folder_lock`.

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
import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator

from detloom.components.pusher.destination import LOCK_NAME
from detloom.components.storage.storage import Storage
from detloom.schemas.reading.redact import redact
from detloom.trainer_module.files.folder_lock import MAX_OWNER_BYTES, Waiting, log_takeover

_CLAIM_POLL_SECONDS = 5.0
LEASE_SECONDS = 60.0
_LOGGER = logging.getLogger("detloom")


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
            self._withdraw()

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
        data = self._storage.read(f"{LOCK_NAME}/{name}", MAX_OWNER_BYTES)
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
                log_takeover(self._where, "push", _owner_of(text))
                self._storage.delete(f"{LOCK_NAME}/{name}")
                continue
            owners[name] = _owner_of(text)
        return owners


def _owner_of(text: str) -> str:
    try:
        return str(json.loads(text)["owner"])
    except (ValueError, KeyError, TypeError):
        return ""
