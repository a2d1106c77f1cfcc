"""Read a data set's folder: every read of untrusted data goes through here, and none leaves the folder.

Local paths and mounts are read with the operating system's calls, buckets (`gs://...`, `s3://...`, `az://...`) with
their client, and other addresses with TensorFlow's file systems, which are imported only then.
"""

import codecs
import contextlib
import errno
import functools
import os
import posixpath
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, TypeVar

from detloom.components.storage.bucket_reader import BucketReader, open_to_read
from detloom.components.storage.storage import Entry, Storage, is_address, open_regular_file, read_regular_file
from detloom.schemas.contracts.rejects import Reason
from detloom.schemas.errors import InputError

_Result = TypeVar("_Result")
_MAX_NAME_BYTES = 1024  # of an object, in Cloud Storage and in S3
_MISSING = (errno.ENOENT, errno.ENOTDIR)
_MAX_FOLDER_DEPTH = 64  # more levels mean a loop of mounts or an attack, not a data set


class SourceError(Exception):
    """A file of the data set that cannot be used: its reason code, and a sentence without a full stop."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def unreadable(detail: str) -> SourceError:
    return SourceError(Reason.UNREADABLE_ANNOTATION, detail)


def join_inside(folder: str, name: str) -> str | None:
    """Return `folder/name` normalized, relative to the data folder; None if the name leads out of the folder."""
    if "\0" in name:
        return None
    # true for most names; normpath would cost as much as opening the file
    if "/" not in name and name not in ("", ".", ".."):
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
    """Return a folder as a path prefix; None if it leads outside."""
    path = posixpath.normpath(folder) if folder else "."
    if posixpath.isabs(path) or path == ".." or path.startswith("../"):
        return None
    return "" if path == "." else path + "/"


@dataclass(frozen=True)
class DataFolder:
    """A folder to read from. All paths are relative to it, with forward slashes; "" is the folder itself.

    A link is followed if its target is inside the folder, or inside the target of a link at the folder's top level (so
    `images` may be a link to another disk). Any other link raises `SourceError`. So does anything that is not a regular
    file, because reading a pipe blocks and reading a device never ends.

    Attributes:
        listing: key of what is listed once for several objects of the same folder, such as those of one ingestion.
    """

    root: str
    listing: str = field(default_factory=lambda: uuid.uuid4().hex, compare=False)

    def read_bytes(self, path: str, max_bytes: int) -> bytes:
        """Return the content of a file; a file larger than `max_bytes` is not read."""
        if is_address(self.root):
            data = self._read_address(path, max_bytes)
        else:
            data = self._with_local_file(path, functools.partial(read_regular_file, limit_bytes=max_bytes))
        if len(data) > max_bytes:
            raise SourceError(Reason.FILE_TOO_LARGE, f"the file is larger than the {max_bytes} bytes allowed")
        return data

    def read_part(self, path: str, start: int, length: int) -> bytes:
        """Return `length` bytes of a file from `start` on; fewer if the file ends before."""
        if isinstance(storage := self._storage, BucketReader):
            try:
                return storage.read_part(self._checked_name(path), start, start + length)
            except OSError as error:
                raise source_error(error) from None
        with self.open(path) as file:
            file.seek(start)
            return file.read(length)

    def read_text(self, path: str, max_bytes: int) -> str:
        """Return the content of a UTF-8 file, or of a UTF-16 file with a byte order mark, without the mark."""
        data = self.read_bytes(path, max_bytes)
        is_utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        try:
            return data.decode("utf-16" if is_utf16 else "utf-8-sig")
        except UnicodeDecodeError as error:
            detail = f"not {error.encoding.upper()}: byte {data[error.start]:#04x} at {error.start}"
            raise SourceError(Reason.UNREADABLE_ANNOTATION, detail) from None

    def open(self, path: str) -> BinaryIO:
        """Open a file for streaming."""
        if not is_address(self.root):
            return self._with_local_file(path, open_regular_file)
        try:
            return self._open_address(path)
        except (OSError, ValueError) as error:
            raise source_error(error) from None

    @contextlib.contextmanager
    def refuse(self, path: str) -> Iterator[None]:
        """Raise an InputError that names the file if the block raises a SourceError: a whole split depends on it."""
        try:
            yield
        except SourceError as error:
            raise InputError(f"{self._full(path)}: cannot be read ({error.detail}).") from None

    def _with_local_file(self, path: str, use: Callable[..., _Result]) -> _Result:
        """Call `use` with the full path of a file, and with flags that refuse a link unless it was checked."""
        try:
            try:
                return use(self._checked(path), flags=os.O_NOFOLLOW)
            except OSError as error:
                if error.errno != errno.ELOOP:  # resolving links is slow, so only links are resolved
                    raise
                return use(self._follow(path))
        except (OSError, ValueError) as error:
            raise source_error(error) from None

    def expect(self, paths: Iterable[str], max_bytes: int) -> None:
        """Tell which files `read_bytes` will read next, in this order; those in a bucket are read ahead."""
        if isinstance(storage := self._storage, BucketReader):
            storage.expect(filter(self._is_name, paths), max_bytes)

    def is_file(self, path: str) -> bool:
        """Return whether `path` names a regular file that may be read."""
        try:
            return self.status(path) is not None
        except SourceError:
            return False

    def is_folder(self, path: str) -> bool:
        try:
            if is_address(self.root):
                return self._storage.is_folder(self._checked_name(path))
            return os.path.isdir(self._follow(path))
        except SourceError:
            return False
        except OSError as error:
            _raise_outage(error)
            return False

    def has_content(self, path: str) -> bool:
        """Return whether `path` names a regular file that may be read and is not empty."""
        try:
            status = self.status(path)
        except SourceError:
            return False
        return status is not None and status.size > 0

    def status(self, path: str) -> Entry | None:
        """Return size and time of a regular file; None if it does not exist.

        Raises:
            SourceError: if the path leads out of the folder.
            OSError: if the storage at an address does not respond or refuses the request.
        """
        try:
            if is_address(self.root):
                entry = self._storage.status(self._checked_name(path))
                return None if entry is None or entry.is_folder else entry
            status = os.lstat(self._checked(path))
            if stat.S_ISLNK(status.st_mode):
                status = os.stat(self._follow(path))
        except SourceError as error:
            if error.reason is Reason.PATH_OUTSIDE:
                raise
            return None
        except (OSError, ValueError) as error:
            _raise_outage(error)
            return None
        return Entry(path, status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None

    def list_files(self, folder: str = "", suffixes: Sequence[str] = (), *, recursive: bool = False) -> list[str]:
        """Return the sorted paths of the files that `iter_files` yields."""
        return sorted(self.iter_files(folder, suffixes, recursive=recursive))

    def iter_files(self, folder: str = "", suffixes: Sequence[str] = (), *, recursive: bool = True) -> Iterator[str]:
        """Yield the paths of a folder's files as `walk` does, without looking at the files.

        Args:
            suffixes: of the wanted files (".jpg"), without regard to case; all files if empty.
        """
        wanted = tuple(suffix.lower() for suffix in suffixes)
        for entry in self._walk(folder, recursive, with_status=False):
            if not wanted or entry.path.lower().endswith(wanted):
                yield entry.path

    def list_folders(self, folder: str = "") -> list[str]:
        """Return the sorted paths of a folder's subfolders, without hidden ones."""
        return [entry.path for entry in self._entries(folder, with_status=False) if entry.is_folder]

    def walk(self, folder: str = "", *, recursive: bool = True) -> Iterator[Entry]:
        """Yield all files below a folder, without hidden ones: the files of each folder by name, then its subfolders.

        Memory grows with the files of the largest folder. Links are followed, but no folder is entered twice. A missing
        folder has no files. Anything but a regular file (a pipe, a broken link, a link that leads outside) has size 0;
        reading it raises the reason.

        Raises:
            InputError: if a folder cannot be listed or is nested too deeply.
        """
        return self._walk(folder, recursive, with_status=True)

    def _walk(self, folder: str, recursive: bool, with_status: bool) -> Iterator[Entry]:
        seen = {self._identity(folder)}
        levels = [self._entries(folder, with_status)]  # the folders from `folder` to the current one
        while levels:
            entry = next(levels[-1], None)
            if entry is None:
                levels.pop()
            elif not entry.is_folder:
                yield entry
            elif recursive and (identity := self._identity(entry.path)) not in seen:
                seen.add(identity)
                if len(levels) > _MAX_FOLDER_DEPTH:
                    raise InputError(f"{self._full(entry.path)}: more than {_MAX_FOLDER_DEPTH} folders deep.")
                levels.append(self._entries(entry.path, with_status))

    def _identity(self, folder: str) -> str:
        """Return what two paths of the same folder have in common; an address has no links."""
        return folder if is_address(self.root) else os.path.realpath(self._full(folder))

    def _entries(self, folder: str, with_status: bool) -> Iterator[Entry]:
        """Yield a folder's files, then its subfolders, each by name without hidden ones; none if it does not exist.

        Raises:
            InputError: if the folder cannot be listed, because its files would be lost silently.
        """
        try:
            if is_address(self.root):
                entries = self._storage.iter_entries(self._checked_name(folder))
                yield from sorted(entries, key=lambda entry: (entry.is_folder, os.fsencode(entry.path)))
                return
            prefix = f"{folder}/" if folder else ""
            with os.scandir(self._follow(folder)) as found:
                shown = (entry for entry in found if not entry.name.startswith("."))
                names = sorted((self._leads_to_folder(prefix, entry), os.fsencode(entry.name)) for entry in shown)
        except (FileNotFoundError, NotADirectoryError, SourceError):
            return
        except OSError as error:
            raise InputError(f"{self._full(folder)}: the folder cannot be listed ({error.strerror}).") from None
        for is_folder, name in names:
            path = prefix + os.fsdecode(name)
            yield self._status_or_empty(path) if with_status and not is_folder else Entry(path, is_folder=is_folder)

    def _leads_to_folder(self, prefix: str, entry: os.DirEntry[str]) -> bool:
        """Return whether an entry is a folder, or a link to one that may be read."""
        if entry.is_symlink():
            return self.is_folder(prefix + entry.name)
        return entry.is_dir(follow_symlinks=False)

    def _status_or_empty(self, path: str) -> Entry:
        """Return the entry of a file; with size 0 unless it is a regular file that may be read."""
        try:
            return self.status(path) or Entry(path)
        except SourceError:
            return Entry(path)

    @functools.cached_property
    def _storage(self) -> Storage:
        return open_to_read(self.root)

    def __getstate__(self) -> dict[str, str]:
        return {"root": self.root, "listing": self.listing}  # connections and listings stay in their process

    def _full(self, path: str) -> str:
        return posixpath.join(self.root, path) if path else self.root

    def _checked(self, path: str) -> str:
        """Return the full local path after checking its folder; the caller checks whether the last part is a link."""
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
        """Return the full local path; as `_checked`, but the last part may be a link."""
        full = self._checked(path)
        try:
            if path and not _is_inside(self.root, path, os.path.realpath(full)):
                raise SourceError(Reason.PATH_OUTSIDE, "a link leads out of the data folder")
        except (OSError, ValueError) as error:
            raise SourceError(Reason.UNREADABLE_FILE, f"the path cannot be followed ({error})") from None
        return full

    def _checked_name(self, path: str) -> str:
        """Return the path if it stays inside by name; an address has no links."""
        if path and join_inside("", path) is None:
            raise SourceError(Reason.PATH_OUTSIDE, "the path leads out of the data folder")
        if not self._is_name(path):
            raise SourceError(Reason.UNREADABLE_FILE, "no file can have this name")
        return path

    def _is_name(self, path: str) -> bool:
        """Return whether a file at an address can have this name; a request for another name is an error."""
        try:
            num_bytes = len(self._full(path).partition("://")[2].partition("/")[2].encode())
        except UnicodeEncodeError:  # a lone surrogate
            return False
        is_inside = not path or join_inside("", path) is not None
        return is_inside and num_bytes <= _MAX_NAME_BYTES and "\n" not in path and "\r" not in path

    def _read_address(self, path: str, max_bytes: int) -> bytes:
        try:
            data = self._storage.read(self._checked_name(path), max_bytes)
        except OSError as error:
            raise source_error(error) from None
        if data is None:
            raise SourceError(Reason.MISSING_FILE, "the file is missing")
        return data

    def _open_address(self, path: str) -> BinaryIO:
        if self.status(path) is None:
            raise SourceError(Reason.MISSING_FILE, "the file is missing")
        return self._storage.open(path)


@functools.lru_cache(maxsize=4096)
def _parent_is_inside(root: str, parent: str) -> bool:
    """Cache the result by folder: resolving links for each image would cost more than reading it."""
    if parent and join_inside("", parent) is None:
        return False
    return _is_inside(root, parent, os.path.realpath(os.path.join(root, parent)))


def _is_inside(root: str, path: str, real: str) -> bool:
    top = path.split("/", 1)[0]
    homes = (os.path.realpath(root), os.path.realpath(os.path.join(root, top)) if "/" in path or not path else "")
    is_top_folder = "/" not in path and os.path.isdir(real)  # for example `images`, linked to another disk
    return is_top_folder or any(home and (real == home or real.startswith(home + os.sep)) for home in homes)


def source_error(error: OSError | ValueError) -> SourceError:
    """Return why a file cannot be used; an outage of a storage is raised."""
    _raise_outage(error)
    if isinstance(error, ValueError):
        return SourceError(Reason.PATH_OUTSIDE, f"not a valid path ({error})")
    if error.errno in _MISSING:
        return SourceError(Reason.MISSING_FILE, "the file is missing")
    return SourceError(Reason.UNREADABLE_FILE, f"the file cannot be read ({error.strerror or error})")


def _raise_outage(error: OSError | ValueError) -> None:
    """Raise an error of a storage at an address, unless a file is missing: it concerns more than one file.

    Rejects would hide it. Beam repeats the work, and in the end the ingestion fails.
    """
    scheme, mark, _ = str(getattr(error, "filename", "")).partition("://")
    if mark and "/" not in scheme and isinstance(error, OSError) and error.errno not in _MISSING:
        raise error
