"""The operations that a local folder and an object store have in common."""

import errno
import io
import json
import os
import posixpath
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, cast

from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import redact

HIDDEN = "."  # begins the names that are not listed: temporary files, and what a killed writer left
BLOCK_BYTES = 8 << 20  # of one download


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

    def list_names(self, folder: str = "", *, with_hidden: bool = False) -> list[str]:
        """Return the sorted names in a folder; empty if it is missing, but FileNotFoundError for a missing bucket."""
        return [posixpath.basename(entry.path) for entry in self.list_entries(folder, with_hidden=with_hidden)]

    @abstractmethod
    def list_entries(self, folder: str = "", *, with_hidden: bool = False) -> list[Entry]:
        """Return a folder's entries with sizes and times, sorted by name; empty if the folder does not exist."""

    def iter_entries(self, folder: str = "") -> Iterator[Entry]:
        """Yield the entries of `list_entries` in any order; in a bucket, not all are in memory at the same time."""
        yield from self.list_entries(folder)

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
        """Write or replace a small file and sync it, as `open_to_write` does."""

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
            raise missing_file(self.address(path))
        return json.loads(data)

    def write_json(self, path: str, value: Any) -> None:
        """Write JSON as `open_to_write` does; lone surrogates become question marks."""
        with self.open_to_write(path) as file:
            file.write(json.dumps(value, indent=2, ensure_ascii=False).encode("utf-8", "replace") + b"\n")

    def replace_files(self, contents: Mapping[str, bytes]) -> None:
        """Write files in this order, after deleting the old ones, last first: if the last exists, so do the others."""
        for name in reversed(list(contents)):
            self.delete(name)
        for name, content in contents.items():
            self.write(name, content)

    def walk(self, folder: str = "", *, with_hidden: bool = False) -> Iterator[Entry]:
        """Yield all files below a folder in path order; one folder at a time is in memory.

        Raises:
            InputError: a name that would point out of a folder to which the files are copied.
        """
        for entry in self.list_entries(folder, with_hidden=with_hidden):
            name = posixpath.basename(entry.path)
            if name in (".", "..") or "\0" in name:
                where = redact(self.address(folder))
                raise InputError(f"{where}: got a file named {name!r}, allowed: names inside the folder.")
            if entry.is_folder:
                yield from self.walk(entry.path, with_hidden=with_hidden)
            else:
                yield entry


def open_ranges(read_range: Callable[[int, int], bytes], size: int) -> BinaryIO:
    """Return a buffered file of `size` bytes; `read_range(start, stop)` returns these bytes of it."""
    return io.BufferedReader(_RangeFile(read_range, size), BLOCK_BYTES)


class _RangeFile(io.RawIOBase):
    """A file whose parts are requested."""

    def __init__(self, read_range: Callable[[int, int], bytes], size: int) -> None:
        self._read_range, self._size, self._position = read_range, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._read_to(min(self._position + len(buffer), self._size))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        """Return the rest by one request; the inherited method asks for it in blocks of 8 KiB."""
        return self._read_to(self._size)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def _read_to(self, stop: int) -> bytes:
        data = self._read_range(self._position, stop) if self._position < stop else b""
        self._position += len(data)
        return data


def missing_file(address: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), redact(address))
