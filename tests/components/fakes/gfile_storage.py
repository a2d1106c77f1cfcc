"""Files at addresses of TensorFlow's file systems, in place of a bucket that TensorFlow cannot reach either."""

import contextlib
import io
import posixpath
from collections.abc import Iterator
from typing import IO, BinaryIO

from tensorflow.io import gfile

from detloom.components.storage.interface import Entry, Storage, missing_file


class GfileStorage(Storage):
    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")

    def list_entries(self, folder: str = "", *, with_hidden: bool = False) -> list[Entry]:
        if not gfile.isdir(self.address(folder)):
            return []
        names = sorted(name.rstrip("/") for name in gfile.listdir(self.address(folder)))
        paths = [posixpath.join(folder, name) for name in names if with_hidden or not name.startswith(".")]
        return [entry for entry in map(self.status, paths) if entry]

    def status(self, path: str) -> Entry | None:
        if not gfile.exists(self.address(path)):
            return None
        found = gfile.stat(self.address(path))
        return Entry(path, is_folder=True) if found.is_directory else Entry(path, found.length)

    def open(self, path: str) -> BinaryIO:
        if not gfile.exists(self.address(path)):
            raise missing_file(self.address(path))
        with gfile.GFile(self.address(path), "rb") as file:
            return io.BytesIO(file.read())

    @contextlib.contextmanager
    def open_to_write(self, path: str, *, sync: bool = False) -> Iterator[IO[bytes]]:
        file = io.BytesIO()
        yield file
        self.write(path, file.getvalue())

    def write(self, path: str, data: bytes) -> None:
        gfile.makedirs(posixpath.dirname(self.address(path)))
        with gfile.GFile(self.address(path), "wb") as file:
            file.write(data)

    def make_folder(self, path: str = "") -> None:
        gfile.makedirs(self.address(path))

    def rename(self, path: str, new_path: str) -> None:
        gfile.rename(self.address(path), self.address(new_path), overwrite=True)

    def delete(self, path: str) -> None:
        if gfile.exists(self.address(path)):
            gfile.remove(self.address(path))

    def delete_tree(self, path: str = "") -> None:
        if gfile.isdir(self.address(path)):
            gfile.rmtree(self.address(path))
