"""The folder that a data set lies in: every read of untrusted data goes through here, and none leaves the folder.

Local paths and mounts are read with the operating system's calls; addresses with a scheme (`gs://...`) by TensorFlow's
file systems, imported only then.
"""

import contextlib
import errno
import functools
import io
import os
import posixpath
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from detloom.schemas.errors import InputError
from detloom.schemas.rejects import Reason

_MAX_FOLDER_DEPTH = 64  # deeper is a loop of mounts or an attack, not a data set


class SourceError(Exception):
    """A file of the data set that cannot be used: the reason code, and a sentence without a full stop."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def join_inside(folder: str, name: str) -> str | None:
    """`folder/name` in normal form, relative to the data folder; None where the name leads out of the folder."""
    if "\0" in name:
        return None
    if "/" not in name and name not in ("", ".", ".."):  # most names; normpath would cost as much as opening the file
        base = _normal_folder(folder)
        return None if base is None else base + name
    if not name or posixpath.isabs(name) or "://" in name:
        return None
    path = posixpath.normpath(posixpath.join(folder, name))
    base = posixpath.normpath(folder) if folder else "."
    inside = not path.startswith("../") and path not in ("..", ".")
    return path if inside and (base == "." or path.startswith(base + "/")) else None


@functools.lru_cache(maxsize=4096)
def _normal_folder(folder: str) -> str | None:
    """A folder as a prefix of paths; None where it leads out."""
    path = posixpath.normpath(folder) if folder else "."
    if posixpath.isabs(path) or path == ".." or path.startswith("../"):
        return None
    return "" if path == "." else path + "/"


@dataclass(frozen=True, slots=True)
class FileStatus:
    """One file of a listing; the path is relative to the data folder."""

    path: str
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class DataFolder:
    """A folder to read from. All paths are relative to it, with forward slashes; "" is the folder itself.

    A link is followed while it stays inside the folder, or inside what the folder's own first level links to (so that
    `images` may be a link to another disk). Anything else raises `SourceError`; so does what is no regular file, of
    which a pipe would be waited for, and a device never ends.
    """

    root: str

    def read_bytes(self, path: str, max_bytes: int) -> bytes:
        """The whole file; one of more than `max_bytes` is not read."""
        with self.open(path) as file:
            data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise SourceError(Reason.FILE_TOO_LARGE, f"the file is larger than the {max_bytes} bytes allowed")
        return data

    def read_text(self, path: str, max_bytes: int) -> str:
        """The whole file as UTF-8, without a byte order mark."""
        data = self.read_bytes(path, max_bytes)
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            detail = f"not UTF-8: byte {data[error.start]:#04x} at {error.start}"
            raise SourceError(Reason.UNREADABLE_ANNOTATION, detail) from None

    def open(self, path: str) -> BinaryIO:
        """The file, to be streamed."""
        if _is_address(self.root):
            return self._open_address(path)
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            try:
                descriptor = os.open(self._checked(path), flags | os.O_NOFOLLOW)
            except OSError as error:
                if error.errno != errno.ELOOP:  # links are followed only where there are some: that costs
                    raise
                descriptor = os.open(self._follow(path), flags)
        except (OSError, ValueError) as error:
            raise _source_error(error) from None
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise SourceError(Reason.UNREADABLE_FILE, "not a regular file")
        return open(descriptor, "rb", buffering=0 if status.st_size < 1 << 20 else 1 << 16)

    def is_file(self, path: str) -> bool:
        """Whether `path` can be opened as a file, as far as its name and kind tell."""
        try:
            return self.status(path) is not None
        except SourceError:
            return False

    def is_folder(self, path: str) -> bool:
        if _is_address(self.root):
            return bool(_gfile().isdir(self._full(path)))
        try:
            return os.path.isdir(self._follow(path))
        except SourceError:
            return False

    def status(self, path: str) -> FileStatus | None:
        """Size and time of a regular file; None where there is none.

        Raises:
            SourceError: if the path leads out of the folder.
        """
        try:
            if _is_address(self.root):
                found = _gfile().stat(self._full(path))
                return None if found.is_directory else FileStatus(path, int(found.length), int(found.mtime_nsec))
            status = os.lstat(self._checked(path))
            if stat.S_ISLNK(status.st_mode):
                status = os.stat(self._follow(path))
        except SourceError as error:
            if error.reason is Reason.PATH_OUTSIDE:
                raise
            return None
        except Exception:  # each file system has errors of its own, and all mean: not there
            return None
        return FileStatus(path, status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None

    def list_files(self, folder: str = "", suffixes: Sequence[str] = (), *, recursive: bool = False) -> list[str]:
        """Sorted paths of the files in a folder, hidden ones left out; suffixes (".jpg") match in any case.

        Links are followed; a folder that was seen is not entered again. A folder that is not there has no files.
        """
        wanted = tuple(suffix.lower() for suffix in suffixes)
        return sorted(
            entry.path
            for entry in self.walk(folder, recursive=recursive)
            if not wanted or entry.path.lower().endswith(wanted)
        )

    def list_folders(self, folder: str = "") -> list[str]:
        """Sorted paths of the folders in a folder, hidden ones left out."""
        return [path for path, status in self._entries(folder) if status is None]

    def walk(self, folder: str = "", *, recursive: bool = True) -> Iterator[FileStatus]:
        """All files below a folder in the order of their paths, hidden ones left out; one folder at a time.

        What is no regular file (a pipe, a link that leads nowhere or out) is there with a size of 0: reading says why.

        Raises:
            InputError: for a folder that cannot be listed, or lies too deep.
        """
        seen: set[str] = set()
        waiting = [(folder, 0)]
        while waiting:
            current, depth = waiting.pop()
            if not _is_address(self.root):
                real = os.path.realpath(self._full(current))
                if real in seen:
                    continue
                seen.add(real)
            folders = []
            for path, status in self._entries(current):
                if isinstance(status, FileStatus):
                    yield status
                else:
                    folders.append((path, depth + 1))
            if recursive and folders:
                if depth >= _MAX_FOLDER_DEPTH:
                    raise InputError(f"{self._full(folders[0][0])}: more than {_MAX_FOLDER_DEPTH} folders deep.")
                waiting.extend(reversed(folders))

    def _entries(self, folder: str) -> Iterator[tuple[str, FileStatus | None]]:
        """Files of a folder with their status, and folders with None, in the order of their names; no hidden ones."""
        prefix = f"{folder}/" if folder else ""
        for name, entry in sorted(self._scan(folder).items()):
            path = prefix + name
            if name.startswith("."):
                continue
            if entry is not None and not entry.is_symlink():  # no need to look where it lies: its folder was looked at
                if entry.is_dir(follow_symlinks=False):
                    yield path, None
                    continue
                status = None
                if entry.is_file(follow_symlinks=False):
                    with contextlib.suppress(OSError):  # gone since
                        status = entry.stat(follow_symlinks=False)
                yield path, FileStatus(path, status.st_size, status.st_mtime_ns) if status else FileStatus(path, 0, 0)
            elif self.is_folder(path):
                yield path, None
            else:
                found = None
                with contextlib.suppress(SourceError):
                    found = self.status(path)
                yield path, found or FileStatus(path, 0, 0)

    def _scan(self, folder: str) -> dict[str, os.DirEntry[str] | None]:
        """Entries by name, with what the operating system says of them at once; none where there is no such folder.

        Raises:
            InputError: for a folder that cannot be listed: what is in it would be lost without a word.
        """
        try:
            if _is_address(self.root):
                full = self._full(folder)
                return {name.rstrip("/"): None for name in _gfile().listdir(full)} if _gfile().isdir(full) else {}
            with os.scandir(self._follow(folder)) as entries:
                return {entry.name: entry for entry in entries}
        except (FileNotFoundError, NotADirectoryError, SourceError):
            return {}
        except OSError as error:
            raise InputError(f"{self._full(folder)}: the folder cannot be listed ({error.strerror}).") from None

    def _full(self, path: str) -> str:
        return posixpath.join(self.root, path) if path else self.root

    def _checked(self, path: str) -> str:
        """The full local path; its folder was looked at, while a link as the last part is the caller's to check."""
        parent, _, name = path.rpartition("/")
        if name in (".", "..") or "\0" in name or (path and not name):
            raise SourceError(Reason.PATH_OUTSIDE, "the path leads out of the data folder")
        try:
            if not _parent_is_inside(self.root, parent):
                raise SourceError(Reason.PATH_OUTSIDE, "a link or '..' leads out of the data folder")
        except (OSError, ValueError) as error:
            raise SourceError(Reason.UNREADABLE_FILE, f"the path cannot be followed ({error})") from None
        return f"{self.root}/{path}" if path else self.root

    def _follow(self, path: str) -> str:
        """Like `_checked`, for a path whose last part may be a link."""
        full = self._checked(path)
        try:
            if path and not _is_inside(self.root, path, os.path.realpath(full)):
                raise SourceError(Reason.PATH_OUTSIDE, "a link leads out of the data folder")
        except (OSError, ValueError) as error:
            raise SourceError(Reason.UNREADABLE_FILE, f"the path cannot be followed ({error})") from None
        return full

    def _open_address(self, path: str) -> BinaryIO:
        if join_inside("", path) is None:
            raise SourceError(Reason.PATH_OUTSIDE, "the path leads out of the data folder")
        full = self._full(path)
        if not _gfile().exists(full) or _gfile().isdir(full):
            raise SourceError(Reason.MISSING_FILE, "the file is missing")
        file: BinaryIO = io.BufferedReader(_GFileReader(_gfile().GFile(full, "rb")))
        return file


class _GFileReader(io.RawIOBase):
    """What `io.BufferedReader` needs of TensorFlow's file object."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_CUR:
            offset += self._file.tell()
        elif whence == os.SEEK_END:
            offset += self._file.size()
        self._file.seek(offset)
        return offset

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        self._file.close()
        super().close()


def _is_address(path: str) -> bool:
    return "://" in path


def _gfile() -> Any:
    import tensorflow as tf

    return tf.io.gfile


@functools.lru_cache(maxsize=4096)
def _parent_is_inside(root: str, parent: str) -> bool:
    """Cached by folder: resolving links for each image would cost more than reading it."""
    if parent and join_inside("", parent) is None:
        return False
    return _is_inside(root, parent, os.path.realpath(os.path.join(root, parent)))


def _is_inside(root: str, path: str, real: str) -> bool:
    top = path.split("/", 1)[0]
    homes = (os.path.realpath(root), os.path.realpath(os.path.join(root, top)) if "/" in path or not path else "")
    is_top_folder = "/" not in path and os.path.isdir(real)  # `images` itself, linked to another disk
    return is_top_folder or any(home and (real == home or real.startswith(home + os.sep)) for home in homes)


def _source_error(error: OSError | ValueError) -> SourceError:
    if isinstance(error, ValueError):
        return SourceError(Reason.PATH_OUTSIDE, f"no path of a file ({error})")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return SourceError(Reason.MISSING_FILE, "the file is missing")
    return SourceError(Reason.UNREADABLE_FILE, f"the file cannot be opened ({error.strerror})")
