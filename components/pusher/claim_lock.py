"""One pusher at a time where there is no lock, no rename and no exclusive creation: in an object store.

All it asks of the store is that a listing shows what was written before it (Google Cloud Storage and S3 do).

Who wants to push writes a claim under a name of its own and then lists the claims. It may push once such a listing
shows its own claim alone. Of two at the same time, the one whose listing came later saw both: so never both push. Of
several that see each other the one with the smallest name keeps its claim, the others withdraw theirs and wait.

An owner renews its claim. One that has not changed for a whole lease, by the watch of the one who looks, is a dead
owner's: whoever finds it removes it. Removing it gives nobody the lock, so two may do that at once. Clocks of different
machines are never compared.

An owner that slept longer than half a lease renews no more and takes the lock for lost; it asks (`check_held`) before
it writes each file and before it clears away. What remains is a write that is under way for half a lease; it meets no
other's version, for no number is given twice.
"""

import contextlib
import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Protocol

from detloom.components.pusher.folder_lock import Waiting, log_takeover

LEASE_SECONDS = 60.0
_POLL_SECONDS = 5.0
_LOGGER = logging.getLogger("detloom")


class ClaimFiles(Protocol):
    """The claims' place; each method sees what others have written before."""

    where: str

    def names(self) -> list[str]: ...

    def read(self, name: str) -> str | None: ...

    def write(self, name: str, text: str) -> None: ...

    def remove(self, name: str) -> None: ...


class ClaimLock:
    """The lock, as one process sees it. Not used twice."""

    def __init__(
        self,
        files: ClaimFiles,
        owner: str,
        *,
        lease_seconds: float = LEASE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], int] = time.time_ns,
    ) -> None:
        self.name = f"{now():020d}-{uuid.uuid4().hex[:12]}"  # who came first has the smaller name
        self._files, self._owner, self._lease = files, owner, lease_seconds
        self._clock, self._sleep = clock, sleep
        self._seen: dict[str, tuple[str, float]] = {}  # claims of others: text, and since when it is this one
        self._num_renewals, self._renewed_at = 0, float("-inf")
        self._is_claimed = self._is_lost = False

    @contextlib.contextmanager
    def hold(self, limit_seconds: float) -> Iterator[Callable[[], None]]:
        """Wait for the lock, renew it in a thread, release it; yields `check_held`.

        Raises:
            InputError: after `limit_seconds` another still had it.
        """
        stop = threading.Event()

        def renew_until_stopped() -> None:
            while not stop.wait(self._lease / 4) and not self._is_lost:
                with contextlib.suppress(OSError):  # once is not lost; half a lease is
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
        """Return when a listing that began after our claim was written shows no other."""
        waiting = Waiting(self._files.where, limit_seconds, self._clock)
        while True:
            if self._is_claimed:
                self._write()  # before the listing: if somebody took it for dead, it is there again
            others = self._live_claims()
            if not others:
                if self._is_claimed:
                    return
                self._is_claimed = True
                continue
            if self._is_claimed and min(others) < self.name:
                self._withdraw()
            waiting.go_on(others[min(others)])
            self._sleep(min(_POLL_SECONDS, self._lease / 4))

    def renew(self) -> None:
        """Show that the owner lives; one that comes too late, or whose claim is gone, has lost the lock."""
        if self._clock() - self._renewed_at > self._lease / 2 or self._files.read(self.name) is None:
            self._is_lost = True
        else:
            self._write()

    def check_held(self) -> None:
        """Raise OSError if somebody else may have the lock by now."""
        if not self._is_lost:
            self.renew()
        if self._is_lost:
            raise OSError(
                f"{self._files.where}: this push stood still for so long that its lock is lost; nothing was changed, "
                "push again."
            )

    def _write(self) -> None:
        at = self._clock()  # before it is written: ours ends before any other's watch says so
        self._num_renewals += 1
        self._files.write(self.name, json.dumps({"owner": self._owner, "renewals": self._num_renewals}))
        self._renewed_at = at

    def _withdraw(self) -> None:
        if self._is_claimed:
            self._is_claimed = False
            try:
                self._files.remove(self.name)
            except OSError as error:
                _LOGGER.warning(
                    "%s: the lock could not be released (%s); it ends by itself within %g s.",
                    self._files.where,
                    error,
                    self._lease,
                )

    def _live_claims(self) -> dict[str, str]:
        """Owners by the name of their claim; removes claims of the dead."""
        owners = {}
        for name in self._files.names():
            text = None if name == self.name else self._files.read(name)
            if text is None:  # ours, or withdrawn meanwhile
                continue
            before, since = self._seen.get(name, (None, 0.0))
            if text != before:
                self._seen[name] = text, self._clock()
            elif self._clock() - since >= self._lease:
                log_takeover(self._files.where, _owner_of(text))
                self._files.remove(name)
                continue
            owners[name] = _owner_of(text)
        return owners


def _owner_of(text: str) -> str:
    try:
        return str(json.loads(text)["owner"])
    except (ValueError, KeyError, TypeError):
        return ""
