"""Read and write files below a root: a local folder, a bucket (gs://, s3://), or another address that TFX's file
systems know (hdfs://).

`Storage` is what both can do. A `LocalStorage` can do more: create a file exclusively, rename a folder, append to a
file. Code that needs one of these takes a `LocalStorage`. Code that needs the generations of objects takes an
`ObjectStorage`, see `object_storage.py`.

Paths are relative to the root, with forward slashes; "" is the root itself. Names that begin with a dot are hidden from
listings: temporary files have such names, and a killed writer leaves them behind.

All errors are OSError, with addresses redacted. Names are not checked: reads of untrusted data go through `DataFolder`.
"""

import contextlib
import errno
import io
import os
import posixpath
import shutil
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO

from detloom.components.storage.google_storage import GoogleStorage
from detloom.components.storage.interface import Entry, Storage
from detloom.components.storage.s3_storage import S3Storage
from detloom.schemas.reading.redact import redact

_SCHEME_MARK = "://"
_HIDDEN = "."
_BLOCK_BYTES = 1 << 20


def open_storage(root: str | Path) -> Storage:
    """Return the storage of a local folder or of an address, which contains "://". Nothing is read or created."""
    text = str(root)
    for kind in (GoogleStorage, S3Storage):
        if text.startswith(kind.scheme):
            return kind(text)
    return AddressStorage(text) if is_address(text) else LocalStorage(text)


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
        return sorted(name for name in names if with_hidden or not name.startswith(_HIDDEN))

    def list_entries(self, folder: str = "", *, with_hidden: bool = False) -> list[Entry]:
        entries = []
        try:
            with os.scandir(self.address(folder)) as found:
                for item in found:
                    if with_hidden or not item.name.startswith(_HIDDEN):
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
        temporary = posixpath.join(folder, _temporary_name(name))
        try:
            with open(self.address(temporary), "xb", buffering=_BLOCK_BYTES) as file:
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


class AddressStorage(Storage):
    """An address of TFX's file systems, which pass unknown schemes to TensorFlow; both are imported when needed."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")

    def list_names(self, folder: str = "", *, with_hidden: bool = False) -> list[str]:
        address = self.address(folder)
        try:
            with _plain_errors(address):
                _fileio().exists(address)  # raises on an unknown file system, where TensorFlow's listing is empty
                names = {str(name).rstrip("/") for name in _fileio().listdir(address)} - {""}
        except FileNotFoundError:
            return []
        return sorted(name for name in names if with_hidden or not name.startswith(_HIDDEN))

    def list_entries(self, folder: str = "", *, with_hidden: bool = False) -> list[Entry]:
        paths = (posixpath.join(folder, name) for name in self.list_names(folder, with_hidden=with_hidden))
        return [entry for path in paths if (entry := self.status(path))]

    def status(self, path: str) -> Entry | None:
        try:
            with _plain_errors(self.address(path)):
                found = _fileio().stat(self.address(path))
        except FileNotFoundError:
            return None
        return Entry(path, is_folder=True) if found.is_directory else Entry(path, found.length, found.mtime_nsec)

    def open(self, path: str) -> BinaryIO:
        address = self.address(path)
        with _plain_errors(address):
            return io.BufferedReader(_RawFile(_fileio().open(address, "rb"), address), _BLOCK_BYTES)

    @contextlib.contextmanager
    def open_to_write(self, path: str, *, sync: bool = False) -> Iterator[IO[bytes]]:
        folder, name = posixpath.split(path)
        temporary = posixpath.join(folder, _temporary_name(name))
        address = self.address(temporary)
        self.make_folder(folder)
        try:
            with _plain_errors(address):
                raw = _RawFile(_fileio().open(address, "wb"), address)
            with io.BufferedWriter(raw, _BLOCK_BYTES) as file:
                yield file
            self.rename(temporary, path)
        except BaseException:  # also Ctrl-C
            with contextlib.suppress(OSError):
                self.delete(temporary)
            raise

    def write(self, path: str, data: bytes) -> None:
        self.make_folder(posixpath.dirname(path))
        with _plain_errors(self.address(path)), _fileio().open(self.address(path), "wb") as file:
            file.write(data)

    def upload(self, source: str | Path, path: str) -> None:
        """Copy a local file directly to `path`: without rename, an object becomes visible when it is complete."""
        self.make_folder(posixpath.dirname(path))
        address = self.address(path)
        with open(source, "rb") as data, _plain_errors(address), _fileio().open(address, "wb") as file:
            shutil.copyfileobj(data, file, _BLOCK_BYTES)

    def make_folder(self, path: str = "") -> None:
        with _plain_errors(self.address(path)):
            _fileio().makedirs(self.address(path))

    def rename(self, path: str, new_path: str) -> None:
        with _plain_errors(self.address(path)):
            _fileio().rename(self.address(path), self.address(new_path), overwrite=True)

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError), _plain_errors(self.address(path)):
            _fileio().remove(self.address(path))

    def delete_tree(self, path: str = "") -> None:
        with contextlib.suppress(FileNotFoundError), _plain_errors(self.address(path)):
            _fileio().rmtree(self.address(path))


def open_regular_file(path: str, flags: int = 0) -> BinaryIO:
    """Open a local file for reading without blocking; anything but a regular file is an OSError (EINVAL).

    A pipe would block until somebody writes to it, and a device may never end. `flags` are added to those of `os.open`.
    """
    descriptor, size = _open_regular(path, flags)
    return open(descriptor, "rb", buffering=_BLOCK_BYTES if size > _BLOCK_BYTES else -1)


def read_regular_file(path: str, limit_bytes: int, flags: int = 0) -> bytes:
    """Return the content of a local file, cut one byte after the limit; opened as `open_regular_file` does."""
    descriptor, size = _open_regular(path, flags)
    try:
        data = os.read(descriptor, min(size, limit_bytes) + 1)  # allocates what is asked for, so no more than needed
        if len(data) == size:
            return data
        parts = [data]
        while data and (num_missing := limit_bytes + 1 - sum(map(len, parts))) > 0:  # the size is not exact
            data = os.read(descriptor, min(num_missing, _BLOCK_BYTES))
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


class _RawFile(io.RawIOBase):
    """An adapter from TensorFlow's file object to Python's buffered files."""

    def __init__(self, file: Any, address: str) -> None:
        self._file, self._address = file, address

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with _plain_errors(self._address):
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def write(self, data: Any) -> int:
        with _plain_errors(self._address):
            self._file.write(bytes(data))
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        with _plain_errors(self._address):
            if whence == os.SEEK_CUR:
                offset += self._file.tell()
            elif whence == os.SEEK_END:
                offset += self._file.size()
            self._file.seek(offset)
        return offset

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        if not self.closed:
            with _plain_errors(self._address):
                self._file.close()
        super().close()


def _fileio() -> Any:
    from tfx.dsl.io import fileio

    return fileio


@contextlib.contextmanager
def _plain_errors(address: str) -> Iterator[None]:
    """Raise TFX's and TensorFlow's errors as OSError."""
    import tensorflow as tf

    try:
        yield
    except (tf.errors.NotFoundError, _fileio().NotFoundError):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), redact(address)) from None
    except (tf.errors.OpError, NotImplementedError) as error:
        raise OSError(errno.EIO, redact(str(error)), redact(address)) from None


def _local_entry(path: str, status: os.stat_result) -> Entry:
    is_folder = stat.S_ISDIR(status.st_mode)
    return Entry(path, status.st_size if stat.S_ISREG(status.st_mode) else 0, status.st_mtime_ns, is_folder)


def _temporary_name(name: str) -> str:
    return f"{_HIDDEN}{name}.{uuid.uuid4().hex[:12]}"
