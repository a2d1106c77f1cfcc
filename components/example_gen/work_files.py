"""Files that an ingestion writes: on local disks and mounts, and at addresses that TensorFlow's file systems know.

Everything unfinished lies in a staging folder inside the output; a file gets its final name by one rename.
"""

import json
import uuid
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

STAGING_DIR = ".incomplete"  # beside the split folders: readers take every file in those for finished
_WRITE_BUFFER_BYTES = 1 << 20


class LineWriter:
    """Lines into a file that appears under its name when the writer is closed, not before.

    Left by an exception, nothing appears. Two workers that write the same file (a runner may try a bundle twice) write
    the same bytes, each under a name of its own; the last rename wins.
    """

    def __init__(self, path: str) -> None:
        self.num_lines = 0
        self._path = path
        self._temporary = f"{path}.{uuid.uuid4().hex}"
        self._parts: list[bytes] = []
        self._num_bytes = 0
        make_folder(path.rpartition("/")[0])
        self._file = tf.io.gfile.GFile(self._temporary, "wb")

    def __enter__(self) -> "LineWriter":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._file.close()
            remove_file(self._temporary)
            return
        self._flush()
        self._file.flush()
        self._file.close()
        tf.io.gfile.rename(self._temporary, self._path, overwrite=True)

    def write(self, line: bytes) -> None:
        """`line` holds no line end."""
        self.num_lines += 1
        self._parts += (line, b"\n")
        self._num_bytes += len(line) + 1
        if self._num_bytes >= _WRITE_BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._file.write(b"".join(self._parts))
        self._parts.clear()
        self._num_bytes = 0


def read_lines(path: str) -> Iterable[bytes]:
    """Lines without their ends, streamed."""
    with tf.io.gfile.GFile(path, "rb") as file:
        rest = b""
        while block := file.read(_WRITE_BUFFER_BYTES):
            lines = (rest + block).split(b"\n")
            rest = lines.pop()
            yield from lines
        if rest:
            yield rest


def write_json(path: str, value: Any, *, is_ascii: bool = False) -> None:
    """One file, written under another name and renamed; as ASCII it holds any text, also halves of surrogate pairs."""
    with LineWriter(path) as file:
        file.write(json.dumps(value, indent=2, ensure_ascii=is_ascii).encode("utf-8", "replace"))


def read_json(path: str) -> Any:
    with tf.io.gfile.GFile(path, "rb") as file:
        return json.loads(file.read())


def rename(path: str, new_path: str) -> None:
    """In one step on file systems that have it; what was there is replaced."""
    tf.io.gfile.rename(path, new_path, overwrite=True)


def exists(path: str) -> bool:
    return bool(tf.io.gfile.exists(path))


def make_folder(path: str) -> None:
    tf.io.gfile.makedirs(path)


def remove_folder(path: str) -> None:
    if tf.io.gfile.exists(path):
        tf.io.gfile.rmtree(path)


def list_names(path: str) -> list[str]:
    """Sorted names in a folder; none where there is no such folder."""
    if not tf.io.gfile.isdir(path):
        return []
    return sorted(name.rstrip("/") for name in tf.io.gfile.listdir(path))


def remove_file(path: str) -> None:
    if tf.io.gfile.exists(path):
        tf.io.gfile.remove(path)
