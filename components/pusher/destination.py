"""Where versions are pushed to: what a push needs of a place, whatever kind of storage it is."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from detloom.components.pusher.load_check import LoadCheck
from detloom.components.pusher.manifest import Files, Manifest
from detloom.schemas.errors import InputError

SCHEME_MARK = "://"
MODEL_FILE = "saved_model.pb"
TEMPORARY_PREFIX, TRASH_PREFIX = ".push-", ".trash-"
LOCK_NAME = ".push.lock"
_MAX_NAME = 256  # characters; Python refuses to read numbers of thousands of digits
_END_OF_NUMBERS = 2**63  # TensorFlow Serving reads a version's number as a signed one of 64 bits


class Destination(Protocol):
    """A folder of numbered versions."""

    address: str
    requires_manifest: bool  # whether a version without one may be half written

    def lock(self, limit_seconds: float, run_id: str) -> AbstractContextManager[Callable[[], None]]:
        """Keep other pushers out; gives a function that raises OSError when that has come to an end."""

    def names(self) -> list[str]:
        """What is in the folder, of whatever kind; nothing where there is none."""

    def versions(self) -> list[int]:
        """Numbers of the versions, ascending; those that are not complete, too."""

    def read(self, name: str, limit_bytes: int) -> bytes | None:
        """A file's first bytes, one more than the limit at most; None where there is no such file."""

    def measure(self, version: int) -> Files:
        """Read all files of a version but its manifest."""

    def remove_leftovers(self) -> None:
        """Remove what pushes have left that were killed, and nothing else. Only with the lock."""

    def place(
        self,
        version: int,
        sources: Mapping[str, Path],
        manifest: Manifest,
        check: LoadCheck,
        check_held: Callable[[], None],
    ) -> None:
        """Copy, verify, load, and make it a version in one step; when this raises, nothing of it is left.

        Raises:
            InputError: what `check` found.
            OSError: it could not be written, or the copy differs.
        """

    def append_record(self, line: str) -> None:
        """Add a line to the push record."""

    def remove_version(self, version: int) -> None:
        """Take it away from servers in one step, then delete it."""

    def fetch(self, version: int) -> AbstractContextManager[Path]:
        """The version as a local folder."""


def open_destination(address: "str | Path") -> Destination:
    """By the look of the address: a folder, or one of a storage that TFX's filesystem layer knows."""
    if SCHEME_MARK in str(address):
        from detloom.components.pusher.object_store import ObjectStore  # late: brings TFX and TensorFlow

        return ObjectStore(str(address))
    from detloom.components.pusher.folder import Folder

    return Folder(Path(address))


def version_numbers(names: Iterable[str]) -> list[int]:
    """Ascending; what we take for a version: a plain number without leading zeros, that a server can read."""
    found = {name: _number(name) for name in names}
    return sorted(number for name, number in found.items() if number is not None and str(number) == name)


def leftover_number(name: str) -> int | None:
    """The version that a push has left this name of, or None for a name of something else."""
    prefix = next((each for each in (TEMPORARY_PREFIX, TRASH_PREFIX) if name.startswith(each)), None)
    numbers = version_numbers([name.removeprefix(prefix)]) if prefix else []
    return numbers[0] if numbers else None


def next_version(names: Iterable[str], recorded: Iterable[int], now: float) -> int:
    """The time in seconds, or one more than every number that is taken: none ever stands for two models.

    Args:
        names: in the folder. TensorFlow Serving reads every name as a number: those of files and padded ones count,
            and so does what a killed push has left.
        recorded: versions in the push record, which may be deleted by now.

    Raises:
        InputError: there is no higher number that a server can read.
    """
    numbers = (leftover_number(name) if name.startswith(".") else _number(name) for name in names)
    taken = [number for number in (*numbers, *recorded) if number is not None and number < _END_OF_NUMBERS]
    version = max(int(now), max(taken, default=0) + 1)
    if version >= _END_OF_NUMBERS:
        raise InputError(
            f"got the number {version - 1} among the versions, allowed: below 2**63 - 1, for the next one is higher. "
            "Push to another folder."
        )
    return version


def _number(name: str) -> int | None:
    number = int(name) if name.isascii() and name.isdecimal() and len(name) < _MAX_NAME else _END_OF_NUMBERS
    return number if number < _END_OF_NUMBERS else None
