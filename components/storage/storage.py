"""Read and write files below a root: a local folder, or a bucket (gs://, s3://, az://).

`Storage` is what both can do. A `LocalStorage` also renames folders and appends to files, a `BucketStorage` compares
generations of files.

Paths are relative to the root, with forward slashes; "" is the root itself. Names that begin with a dot are hidden from
listings: temporary files have such names, and a killed writer leaves them behind.

All errors are OSError, with addresses redacted. Names are not checked: reads of untrusted data go through `DataFolder`.
"""

import contextlib
import errno
import os
import posixpath
import shutil
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO

from detloom.components.storage.bucket import BucketStorage
from detloom.components.storage.interface import HIDDEN, Entry, Storage
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import redact
from detloom.schemas.run_file.push import REMOTE_SCHEMES

_SCHEME_MARK = "://"
_LOCAL_BLOCK_BYTES = 1 << 20


def open_storage(root: str | Path) -> Storage:
    """Return the storage of a local folder or of an address, which contains "://". Nothing is read or created.

    Raises:
        InputError: no bucket has such an address.
    """
    text = str(root)
    if not is_address(text):
        return LocalStorage(text)
    if not text.startswith(REMOTE_SCHEMES):
        raise InputError(f"{redact(text)}: allowed: a folder, or an address of {', '.join(REMOTE_SCHEMES)}.")
    return BucketStorage(text)


def is_address(path: str) -> bool:
    return _SCHEME_MARK in path


class LocalStorage(Storage):
    """A folder of a local or mounted file system."""

    def __init__(self, root: str | Path) -> None:
        self.root = str(root).rstrip("/") or "/"

    def list_names(self, folder: str = "", *, with_hidden: bool = False) -> list[str]:
        try:
            names = os.listdir(self.address(folder))
        except FileNotFoundError:
            return []
        return sorted(name for name in names if with_hidden or not name.startswith(HIDDEN))

    def list_entries(self, folder: str = "", *, with_hidden: bool = False) -> list[Entry]:
        entries = []
        try:
            with os.scandir(self.address(folder)) as found:
                for item in found:
                    if with_hidden or not item.name.startswith(HIDDEN):
                        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile, or a broken link
                            entries.append(_local_entry(posixpath.join(folder, item.name), item.stat()))
        except FileNotFoundError:
            return []
        return sorted(entries, key=lambda entry: entry.path)

    def status(self, path: str) -> Entry | None:
        try:
            return _local_entry(path, os.stat(self.address(path)))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def open(self, path: str) -> BinaryIO:
        return open_regular_file(self.address(path))

    @contextlib.contextmanager
    def open_to_write(self, path: str, *, sync: bool = False) -> Iterator[IO[bytes]]:
        folder, name = posixpath.split(path)
        self.make_folder(folder)
        temporary = posixpath.join(folder, f"{HIDDEN}{name}.{uuid.uuid4().hex[:12]}")
        try:
            with open(self.address(temporary), "xb", buffering=_LOCAL_BLOCK_BYTES) as file:
                yield file
                file.flush()
                if sync:
                    os.fsync(file.fileno())
            self.rename(temporary, path)
        except BaseException:  # also Ctrl-C
            self.delete(temporary)
            raise

    def write(self, path: str, data: bytes) -> None:
        with self.open_to_write(path, sync=True) as file:
            file.write(data)

    def make_folder(self, path: str = "") -> None:
        os.makedirs(self.address(path), exist_ok=True)

    def rename(self, path: str, new_path: str) -> None:
        os.replace(self.address(path), self.address(new_path))

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.address(path))

    def delete_tree(self, path: str = "") -> None:
        full = self.address(path)
        if os.path.islink(full):
            os.unlink(full)
            return
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(full)

    def rename_folder(self, path: str, new_path: str) -> None:
        """Rename a folder atomically; OSError if the target is a folder that is not empty."""
        os.rename(self.address(path), self.address(new_path))

    def append(self, path: str, data: bytes) -> None:
        """Append to a file, and sync it."""
        with open(self.address(path), "ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def sync(self, path: str = "") -> None:
        """Make a file's content, or a folder's list of names, survive a power failure."""
        descriptor = os.open(self.address(path), os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def open_regular_file(path: str, flags: int = 0) -> BinaryIO:
    """Open a local file for reading without blocking; anything but a regular file is an OSError (EINVAL).

    A pipe would block until somebody writes to it, and a device may never end. `flags` are added to those of `os.open`.
    """
    descriptor, size = _open_regular(path, flags)
    return open(descriptor, "rb", buffering=_LOCAL_BLOCK_BYTES if size > _LOCAL_BLOCK_BYTES else -1)


def read_regular_file(path: str, limit_bytes: int, flags: int = 0) -> bytes:
    """Return the content of a local file, cut one byte after the limit; opened as `open_regular_file` does."""
    descriptor, size = _open_regular(path, flags)
    try:
        data = os.read(descriptor, min(size, limit_bytes) + 1)  # allocates what is asked for, so no more than needed
        if len(data) == size:
            return data
        parts = [data]
        while data and (num_missing := limit_bytes + 1 - sum(map(len, parts))) > 0:  # the size is not exact
            data = os.read(descriptor, min(num_missing, _LOCAL_BLOCK_BYTES))
            parts.append(data)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def _open_regular(path: str, flags: int) -> tuple[int, int]:
    """Return descriptor and size of a local file; OSError (EINVAL) if it is not a regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return descriptor, status.st_size


def _local_entry(path: str, status: os.stat_result) -> Entry:
    is_folder = stat.S_ISDIR(status.st_mode)
    return Entry(path, status.st_size if stat.S_ISREG(status.st_mode) else 0, status.st_mtime_ns, is_folder)
