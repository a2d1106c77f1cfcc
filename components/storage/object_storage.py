"""The operations of object stores that can create a file exclusively and replace it only in a known generation.

Each write gives a file a new generation. The storage compares it and replaces the file in one step, so of several
processes that change a file at the same time, one succeeds. If the response to such a request is lost, the client sends
it again, and the storage refuses it although the first one succeeded. Therefore each of these writes stores a token of
its own in the file's metadata, and a refused write has failed only if the file has another token.
"""

import contextlib
import errno
import io
import os
import posixpath
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeAlias

from detloom.components.storage.interface import Entry, Storage
from detloom.schemas.reading.redact import redact

Generation: TypeAlias = int | str
"""One state of a file, as the storage names it; 0 or "" means that the file does not exist."""

WRITE_KEY = "detloom-write"  # of the token in a file's metadata
NAMES_PER_PAGE = 1000  # the most that Cloud Storage and S3 list in one response
MAX_CONNECTIONS = 64  # of a client, which the threads of a process share
_HIDDEN = "."
_BLOCK_BYTES = 8 << 20  # of one download


@dataclass(frozen=True)
class Page:
    """A part of a folder's listing in the order of names; names of subfolders end in "/".

    Attributes:
        first, last: the page has all names from `first` to `last`; None for the end of the folder.
    """

    first: str
    last: str | None
    entries: dict[str, Entry] = field(default_factory=dict)

    def covers(self, name: str) -> bool:
        return self.first <= name and (self.last is None or name <= self.last)


class ObjectStorage(Storage):
    """A bucket or a part of it. A file becomes visible when it is completely written; folders are parts of names."""

    scheme: str
    always_compares: bool
    """False if some servers with this interface ignore the generation of a write."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")
        self._bucket_name, _, self._folder = self.root.removeprefix(self.scheme).partition("/")

    def list_names(self, folder: str = "", *, with_hidden: bool = False) -> list[str]:
        """Return the sorted names, by one request for a thousand; FileNotFoundError if the bucket does not exist."""
        return [posixpath.basename(entry.path) for entry in self.list_entries(folder, with_hidden=with_hidden)]

    def list_entries(self, folder: str = "", *, with_hidden: bool = False) -> list[Entry]:
        return sorted(self.iter_entries(folder, with_hidden=with_hidden), key=lambda entry: entry.path)

    def iter_entries(self, folder: str = "", *, with_hidden: bool = False) -> Iterator[Entry]:
        for entry in self._list_all(folder):
            if with_hidden or not posixpath.basename(entry.path).startswith(_HIDDEN):
                yield entry

    @contextlib.contextmanager
    def open_to_write(self, path: str, *, sync: bool = False) -> Iterator[IO[bytes]]:
        with tempfile.TemporaryFile() as file:
            yield file
            self._upload(file, path)

    def upload(self, source: str | Path, path: str) -> None:
        """Copy a local file to `path`."""
        with open(source, "rb") as file:
            self._upload(file, path)

    def make_folder(self, path: str = "") -> None:
        """Do nothing, because a folder exists as long as it has files."""

    @abstractmethod
    def copy(self, path: str, new_path: str) -> None:
        """Copy a file inside the storage, where it is not downloaded; FileNotFoundError if it does not exist.

        FileExistsError if `new_path` exists and the storage can compare that while it copies.
        """

    @abstractmethod
    def read_generation(self, path: str, limit_bytes: int | None = None) -> tuple[bytes, Generation]:
        """Return a file's content, cut one byte after the limit, and its generation."""

    @abstractmethod
    def write_generation(self, path: str, data: bytes, generation: Generation) -> Generation:
        """Replace a small file if it has this generation; create it exclusively if it must not exist.

        Args:
            data: differs from earlier contents of the file, because some storages derive the generation from it.

        Returns:
            the new generation; 0 or "" if the file has another generation, and nothing was written.
        """

    @abstractmethod
    def delete_generation(self, path: str, generation: Generation) -> None:
        """Delete a file if it has this generation; otherwise do nothing."""

    @abstractmethod
    def read_part(self, path: str, start: int, stop: int) -> bytes:
        """Return the bytes from `start` to `stop` of a file that has at least `stop` bytes, usually by one request."""

    @abstractmethod
    def read_page(self, folder: str, first: str) -> Page:
        """Return the names of a folder from `first` on, which need not exist, usually by one request."""

    @abstractmethod
    def _list_all(self, folder: str) -> Iterator[Entry]:
        """Yield all entries of a folder, in any order; one page of the listing is in memory."""

    @abstractmethod
    def _upload(self, file: IO[bytes], path: str) -> None:
        """Write or replace a file with the content of an open one, from its start."""

    def _object_name(self, path: str) -> str:
        return posixpath.join(self._folder, path)

    def _prefix(self, folder: str) -> str:
        return f"{name}/" if (name := self._object_name(folder).strip("/")) else ""


def process_settings(*prefixes: str) -> Hashable:
    """Return what a client depends on: the process, because a forked one must not use the same connections, and the
    environment variables whose names begin with the prefixes.
    """
    names = sorted(name for name in os.environ if name.startswith(prefixes))
    return os.getpid(), tuple((name, os.environ.get(name)) for name in names)


class GenerationError(OSError):
    """The file has another generation than the request requires."""


def open_object(read_range: Callable[[int, int], bytes], size: int) -> BinaryIO:
    """Return a buffered file of `size` bytes; `read_range(start, stop)` returns these bytes of it."""
    return io.BufferedReader(_RawObject(read_range, size), _BLOCK_BYTES)


class _RawObject(io.RawIOBase):
    """One generation of an object as a file."""

    def __init__(self, read_range: Callable[[int, int], bytes], size: int) -> None:
        self._read_range, self._size, self._position = read_range, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        stop = min(self._position + len(buffer), self._size)
        data = self._read_range(self._position, stop) if self._position < stop else b""
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def readall(self) -> bytes:
        """Return the rest by one request; the inherited method asks for it in blocks of 8 KiB."""
        data = self._read_range(self._position, self._size) if self._position < self._size else b""
        self._position += len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        return self._position

    def tell(self) -> int:
        return self._position


def missing_file(address: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), redact(address))
