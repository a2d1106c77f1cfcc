"""The operations that a local folder and an object store have in common."""

import errno
import json
import os
import posixpath
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, cast

from detloom.schemas.reading.redact import redact


@dataclass(frozen=True, slots=True)
class Entry:
    """One file or folder of a listing; a folder, and anything but a regular file, has size 0."""

    path: str
    size: int = 0
    mtime_ns: int = 0
    is_folder: bool = False


class Storage(ABC):
    """The operations that a local folder and an object store have in common.

    Attributes:
        root: the folder or address, without a slash at its end.
    """

    root: str

    @abstractmethod
    def list_names(self, folder: str = "", *, with_hidden: bool = False) -> list[str]:
        """Return the sorted names in a folder, by one request; an empty list if the folder does not exist."""

    @abstractmethod
    def list_entries(self, folder: str = "", *, with_hidden: bool = False) -> list[Entry]:
        """Return a folder's entries with sizes and times, sorted by name; empty if the folder does not exist."""

    def iter_entries(self, folder: str = "", *, with_hidden: bool = False) -> Iterator[Entry]:
        """Yield the entries of `list_entries` in any order; in a bucket, not all are in memory at the same time."""
        yield from self.list_entries(folder, with_hidden=with_hidden)

    @abstractmethod
    def status(self, path: str) -> Entry | None:
        """Return the entry of one file or folder; None if it does not exist."""

    @abstractmethod
    def open(self, path: str) -> BinaryIO:
        """Open a file for streaming; FileNotFoundError if it does not exist (an address: at the first read)."""

    @abstractmethod
    def open_to_write(self, path: str, *, sync: bool = False) -> AbstractContextManager[IO[bytes]]:
        """Write a file that replaces `path` when the block ends; after an exception, `path` is unchanged.

        Missing folders are created. `sync` makes the content survive a power failure.
        """

    @abstractmethod
    def write(self, path: str, data: bytes) -> None:
        """Write or replace a small file and sync it; missing folders are created.

        Readers see the old or the new content, except on a remote file system that is not an object store, where they
        may see a truncated file.
        """

    @abstractmethod
    def make_folder(self, path: str = "") -> None:
        """Create a folder and its parents, unless they exist."""

    @abstractmethod
    def rename(self, path: str, new_path: str) -> None:
        """Rename a file and replace the target: atomically in a local folder, by copying in an object store."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete a file; do nothing if it does not exist."""

    @abstractmethod
    def delete_tree(self, path: str = "") -> None:
        """Delete a folder with its content; do nothing if it does not exist. The target of a link is kept."""

    def address(self, path: str = "") -> str:
        """Return the full path or address."""
        return posixpath.join(self.root, path) if path else self.root

    def exists(self, path: str = "") -> bool:
        return self.status(path) is not None

    def is_folder(self, path: str = "") -> bool:
        status = self.status(path)
        return status is not None and status.is_folder

    def read(self, path: str, limit_bytes: int | None = None) -> bytes | None:
        """Return the content of a file, cut one byte after the limit; None if the file does not exist."""
        try:
            with self.open(path) as file:
                return file.read() if limit_bytes is None else file.read(limit_bytes + 1)
        except FileNotFoundError:
            return None

    def read_lines(self, path: str) -> Iterator[bytes]:
        """Stream the lines of a file without their ends."""
        with self.open(path) as file:
            for line in cast(Iterable[bytes], file):
                yield line.removesuffix(b"\n")

    def read_json(self, path: str) -> Any:
        """Return the value in a JSON file; FileNotFoundError if it does not exist."""
        data = self.read(path)
        if data is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), redact(self.address(path)))
        return json.loads(data)

    def write_json(self, path: str, value: Any, *, is_ascii: bool = False) -> None:
        """Write JSON as `open_to_write` does; ASCII output can represent any text, including lone surrogates."""
        with self.open_to_write(path) as file:
            file.write(json.dumps(value, indent=2, ensure_ascii=is_ascii).encode("utf-8", "replace") + b"\n")

    def replace_files(self, contents: Mapping[str, bytes]) -> None:
        """Write files in this order, after deleting the old ones, last first: if the last exists, so do the others."""
        for name in reversed(list(contents)):
            self.delete(name)
        for name, content in contents.items():
            self.write(name, content)

    def walk(self, folder: str = "", *, with_hidden: bool = False) -> Iterator[Entry]:
        """Yield all files below a folder in path order; one folder at a time is in memory."""
        for entry in self.list_entries(folder, with_hidden=with_hidden):
            if entry.is_folder:
                yield from self.walk(entry.path, with_hidden=with_hidden)
            else:
                yield entry
