"""Read and write files at an address that TFX's file systems know, such as hdfs://."""

import contextlib
import errno
import functools
import os
import posixpath
import shutil
from collections.abc import Iterator
from typing import IO, Any, BinaryIO

from detloom.components.storage.interface import (
    BLOCK_BYTES,
    HIDDEN,
    Entry,
    RemoteStorage,
    missing_file,
    open_ranges,
    temporary_name,
)
from detloom.schemas.reading.redact import redact


class AddressStorage(RemoteStorage):
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
        return sorted(name for name in names if with_hidden or not name.startswith(HIDDEN))

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
        status = self.status(path)
        if status is None:
            raise missing_file(self.address(path))
        return open_ranges(functools.partial(self.read_part, path), status.size)

    def read_part(self, path: str, start: int, stop: int) -> bytes:
        with _plain_errors(self.address(path)), _fileio().open(self.address(path), "rb") as file:
            file.seek(start)
            return bytes(file.read(stop - start))

    def write(self, path: str, data: bytes) -> None:
        """Write or replace a small file; other readers may see a truncated one."""
        self.make_folder(posixpath.dirname(path))
        with _plain_errors(self.address(path)), _fileio().open(self.address(path), "wb") as file:
            file.write(data)

    def store(self, file: IO[bytes], path: str) -> None:
        folder, name = posixpath.split(path)
        temporary = posixpath.join(folder, temporary_name(name))
        self.make_folder(folder)
        try:
            with _plain_errors(self.address(path)), _fileio().open(self.address(temporary), "wb") as target:
                target.write(b"")  # creates an empty file, too
                shutil.copyfileobj(file, target, BLOCK_BYTES)
            self.rename(temporary, path)
        except BaseException:  # also Ctrl-C
            with contextlib.suppress(OSError):
                self.delete(temporary)
            raise

    def copy(self, path: str, new_path: str) -> None:
        with self.open(path) as file:  # TensorFlow's own copy is visible before it is complete
            self.store(file, new_path)

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
