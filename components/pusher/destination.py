"""The interface that a push needs from a storage, names in the push folder, and version numbers."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from detloom.components.pusher.load_check import LoadCheck
from detloom.components.pusher.manifest import Files, Manifest
from detloom.schemas.contracts.version_names import END_OF_VERSIONS, parse_version
from detloom.schemas.errors import InputError

MODEL_FILE = "saved_model.pb"
TEMPORARY_PREFIX, TRASH_PREFIX = ".push-", ".trash-"
LOCK_NAME = ".push.lock"
_MAX_NAME = 256  # characters; Python refuses to parse integers with thousands of digits


class Destination(Protocol):
    """A folder of numbered versions."""

    address: str
    requires_manifest: bool  # True if a version without a manifest or without `saved_model.pb` may be incomplete

    def lock(self, limit_seconds: float, run_id: str) -> AbstractContextManager[Callable[[], None]]:
        """Keep other pushers out; yield a function that raises OSError once the lock is lost."""

    def names(self) -> list[str]:
        """List all names in the folder; empty if the folder does not exist."""

    def versions(self) -> list[int]:
        """Return the numbers of all versions, ascending, including incomplete ones."""

    def read(self, name: str, limit_bytes: int) -> bytes | None:
        """Return the start of a file, at most `limit_bytes` + 1 bytes; None if the file does not exist."""

    def measure(self, version: int) -> Files:
        """Return size and SHA-256 of each file of a version except its manifest."""

    def state(self) -> Mapping[str, object]:
        """Return a value by name that differs if something else has written into the folder since."""

    def remove_leftovers(self) -> None:
        """Remove what killed pushes left, and nothing else. Requires the lock."""

    def place(
        self,
        version: int,
        sources: Mapping[str, Path],
        manifest: Manifest,
        check: LoadCheck,
        check_held: Callable[[], None],
    ) -> None:
        """Copy the files, verify and load the copy, and only then publish it. On an error, remove the copy.

        Raises:
            InputError: raised by `check`.
            OSError: the copy could not be written, or differs from the original.
        """

    def append_record(self, line: str) -> None:
        """Append a line to the push record."""

    def write(self, name: str, content: bytes) -> None:
        """Write or replace a file beside the versions atomically."""

    def remove_version(self, version: int) -> None:
        """Make the version impossible to load in one step, then delete it."""

    def fetch(self, version: int) -> AbstractContextManager[Path]:
        """Yield the version as a local folder."""


def leftover_number(name: str) -> int | None:
    """Return the version of a name that a killed push left; None for other names."""
    prefix = next((each for each in (TEMPORARY_PREFIX, TRASH_PREFIX) if name.startswith(each)), None)
    return parse_version(name.removeprefix(prefix)) if prefix else None


def next_version(names: Iterable[str], recorded: Iterable[int], now: float) -> int:
    """Return the Unix time in seconds, or the highest number in use plus one. A number is never used for two models.

    Args:
        names: all names in the folder. TensorFlow Serving parses every name as a number, so files, numbers with leading
            zeros and leftovers of killed pushes count.
        recorded: versions in the push record; they may be deleted.

    Raises:
        InputError: no higher number is possible.
    """
    numbers = (leftover_number(name) if name.startswith(".") else _number(name) for name in names)
    taken = [number for number in (*numbers, *recorded) if number is not None and number < END_OF_VERSIONS]
    version = max(int(now), max(taken, default=0) + 1)
    if version >= END_OF_VERSIONS:
        raise InputError(
            f"version {version - 1}: allowed: below 2**63 - 1, because the next version needs a higher number. Push to "
            "another folder."
        )
    return version


def _number(name: str) -> int | None:
    """Return the number that TensorFlow Serving reads from a name, also with leading zeros."""
    number = int(name) if name.isascii() and name.isdecimal() and len(name) < _MAX_NAME else END_OF_VERSIONS
    return number if number < END_OF_VERSIONS else None
