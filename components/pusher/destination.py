"""Where versions are pushed to: what a push needs of a place, whatever kind of storage it is."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from detloom.components.pusher.load_check import LoadCheck
from detloom.components.pusher.manifest import Files, Manifest

SCHEME_MARK = "://"
MODEL_FILE = "saved_model.pb"
TEMPORARY_PREFIX, TRASH_PREFIX = ".push-", ".trash-"
LOCK_NAME = ".push.lock"


class Destination(Protocol):
    """A folder of numbered versions."""

    address: str
    requires_manifest: bool  # whether a version without one may be half written

    def lock(self, limit_seconds: float, run_id: str) -> AbstractContextManager[Callable[[], None]]:
        """Keep other pushers out; gives a function that raises OSError when that has come to an end."""

    def names(self) -> list[str]:
        """What is in the folder; nothing where there is none."""

    def read(self, name: str, limit_bytes: int) -> bytes | None:
        """A file's first bytes, one more than the limit at most; None where there is no such file."""

    def measure(self, version: int) -> Files:
        """Read all files of a version but its manifest."""

    def remove_leftovers(self) -> None:
        """Remove what pushes have left that were killed. Only with the lock."""

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


def version_numbers(names: list[str]) -> list[int]:
    """Ascending; what a server takes for a version: a plain number without leading zeros."""
    return sorted(int(name) for name in names if name.isascii() and name.isdecimal() and str(int(name)) == name)
