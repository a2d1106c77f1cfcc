"""Download an archive with a checkpoint once, and unpack the checkpoint into the user's cache folder.

An archive comes from outside: only the contents of regular files with the names of a checkpoint are written, below one
new folder, and sizes are bounded before anything is read. An entry of the cache appears by a rename, so that a killed
process leaves no incomplete one, and one process at a time downloads an address.
"""

import contextlib
import gzip
import hashlib
import http.client
import logging
import os
import re
import shutil
import tarfile
import threading
import time
import urllib.error
import urllib.request
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO

import detloom
from detloom.schemas.errors import InputError
from detloom.schemas.model.checkpoint_address import ArchiveAddress, parse_archive_address
from detloom.schemas.reading.redact import redact, show_address
from detloom.trainer_module.files.folder_lock import hold_folder_lock
from detloom.trainer_module.files.user_cache import user_cache
from detloom.trainer_module.weights.read_checkpoint import newest_checkpoint

# The zoo's largest archives have about 1.5 GB; the checkpoint is a part of that.
MAX_ARCHIVE_BYTES = 4 * 2**30
MAX_UNPACKED_BYTES = 8 * 2**30
MAX_FILES = 10_000
_MAX_READ_BYTES = 2**16  # of one read: contents are copied in such pieces, and no header needs as much
_MAX_NAME_BYTES, _MAX_PATH_BYTES = 255, 1024
STALL_SECONDS = 60.0  # without a byte
MAX_SECONDS = 4 * 3600.0  # of a download, and of waiting for another process
_PROGRESS_SECONDS = 5.0
_GZIP_MAGIC = b"\x1f\x8b"
_CHECKPOINT_FILE = re.compile(r"[^.].*\.index|[^.].*\.data-\d{5}-of-\d{5}|checkpoint")
_SAVED_MODEL_VARIABLES = re.compile(r"(.*/)?variables/variables\.[^/]*")
_DAMAGE = (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError, OverflowError, RecursionError)
_MAX_LISTED = 8  # names in a message
_LOGGER = logging.getLogger("detloom")


class _BadArchiveError(Exception):
    """The archive cannot be used; the message is part of a sentence."""


class _DownloadError(Exception):
    """The archive cannot be downloaded; the message is part of a sentence."""


def fetch_checkpoint(address: str) -> str:
    """Return the path of the checkpoint in the archive at an address, without suffix; download it at first use.

    Raises:
        InputError: if the address is not allowed, the archive cannot be downloaded or unpacked, or has another hash.
    """
    try:
        parsed, cache = parse_archive_address(address), user_cache("checkpoints")
    except InputError as error:
        raise InputError(f"train.fine_tune_checkpoint: {error}") from None
    return fetch_archive(parsed, cache)


def fetch_archive(address: ArchiveAddress, cache: Path) -> str:
    """Return the path of the checkpoint as `fetch_checkpoint` does, with another cache folder."""
    entry, by_hand = _entry(address, cache), archive_by_hand(address, cache)
    where = f"train.fine_tune_checkpoint: {show_address(str(address))}"
    try:
        if not entry.is_dir():
            cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            with hold_folder_lock(entry.with_name(f"{entry.name}.lock"), "download", limit_seconds=MAX_SECONDS):
                if not entry.is_dir():  # another process may have made it meanwhile
                    _make_entry(address, entry, by_hand)
        return _find_checkpoint(entry)
    except _DownloadError as error:
        raise InputError(
            f"{where} cannot be downloaded: {error}. Check the address and the network; or, on a machine without "
            f"network access, copy the archive to {by_hand}, or unpack it and set train.fine_tune_checkpoint to the "
            "path of its checkpoint without suffix."
        ) from None
    except _BadArchiveError as error:
        place = f"; it was copied to {by_hand} by hand" if by_hand.exists() else ""
        raise InputError(
            f"{where} cannot be used: {error}{place}; allowed: a .tar.gz with one checkpoint, such as those of the TF2 "
            "detection zoo and of google/automl."
        ) from None
    except OSError as error:
        raise InputError(
            f"{where}: the cache folder {cache} cannot be used ({error.strerror or error}); free space there, or set "
            "XDG_CACHE_HOME to a local folder that can be written."
        ) from None


def archive_by_hand(address: ArchiveAddress, cache: Path) -> Path:
    """Return where a user without a network puts the archive; it is used instead of a download and never removed."""
    entry = _entry(address, cache)
    return entry.with_name(f"{entry.name}.tar.gz")


def _entry(address: ArchiveAddress, cache: Path) -> Path:
    """Return the folder of an address in the cache; an address with another hash is another entry."""
    stem = re.sub(r"[^A-Za-z0-9_-]+", "_", address.file_name.partition(".")[0])[:80]
    return cache / f"{stem}-{hashlib.sha256(str(address).encode()).hexdigest()[:16]}"


def _make_entry(address: ArchiveAddress, entry: Path, by_hand: Path) -> None:
    """Download, check and unpack; the caller holds the lock, so that files of other processes are leftovers."""
    work = entry.with_name(f".{entry.name}")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        archive = by_hand if by_hand.exists() else work / "archive"
        if archive != by_hand:
            with archive.open("wb") as file:
                _download_in_time(address, file)
        _check_hash(archive, address.sha256)
        _unpack(archive, work / "unpacked")
        _find_checkpoint(work / "unpacked")
        (work / "unpacked").rename(entry)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    _LOGGER.info("%s: unpacked to %s.", show_address(address.url), entry)


def _find_checkpoint(folder: Path) -> str:
    """Return the only checkpoint in a folder, or the newest one that TensorFlow's list names."""
    paths = sorted(str(path).removesuffix(".index") for path in folder.rglob("*.index"))
    if len(paths) == 1:
        return paths[0]
    if not paths:
        raise _BadArchiveError("it contains no checkpoint, which has a file NAME.index")
    newest = {path for parent in set(map(os.path.dirname, paths)) if (path := newest_checkpoint(parent))}
    if len(newest) == 1:
        return newest.pop()
    names = ", ".join(os.path.relpath(path, folder) for path in paths[:_MAX_LISTED])
    raise _BadArchiveError(f"it contains {len(paths)} checkpoints ({names}); unpack it and give the path of one")


def _check_hash(archive: Path, expected: str) -> None:
    if not expected:
        return
    digest = hashlib.sha256()
    with archive.open("rb") as file:
        while data := file.read(_MAX_READ_BYTES):
            digest.update(data)
    if digest.hexdigest() != expected:
        raise _BadArchiveError(f"its SHA-256 is {digest.hexdigest()}, allowed: {expected}")


# --- download ---------------------------------------------------------------------------------------------------------


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follow redirects to https only; to http as well if a hash fixes the content."""

    def __init__(self, *, allows_http: bool) -> None:
        self._allowed = ("https://", "http://") if allows_http else ("https://",)

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if not newurl.lower().startswith(self._allowed):
            fp.close()
            raise _DownloadError(f"the server redirects to '{redact(newurl)}', allowed: {' or '.join(self._allowed)}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _download(address: ArchiveAddress, file: BinaryIO) -> None:
    """Write the archive to a file and log the progress; proxies are taken from the environment."""
    with _open(address) as response:
        total, name = response.length, show_address(address.url)
        _check_size(total or 0)
        _LOGGER.info("%s: downloading%s.", name, f" {total / 1e6:.1f} MB" if total is not None else "")
        num_bytes, said = 0, time.monotonic()
        while data := _read_some(response):
            num_bytes += len(data)
            _check_size(num_bytes)
            file.write(data)
            if time.monotonic() - said >= _PROGRESS_SECONDS:
                of_total = f" of {total / 1e6:.0f}" if total is not None else ""
                _LOGGER.info("%s: %.0f%s MB.", name, num_bytes / 1e6, of_total)
                said = time.monotonic()
    if total is not None and num_bytes != total:
        raise _DownloadError(f"the connection ended after {num_bytes:,} of {total:,} bytes; try again")


def _download_in_time(address: ArchiveAddress, file: BinaryIO) -> None:
    """Download in a thread, because a server that sends a byte now and then never stalls a socket.

    Raises:
        _DownloadError: it takes more than MAX_SECONDS; the thread then ends with the process.
    """
    errors: list[BaseException] = []

    def download() -> None:
        try:
            _download(address, file)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=download, daemon=True)
    thread.start()
    thread.join(MAX_SECONDS)
    if thread.is_alive():
        raise _DownloadError(f"it took more than {MAX_SECONDS:g} s")
    if errors:
        raise errors[0]


def _open(address: ArchiveAddress) -> http.client.HTTPResponse:
    opener = urllib.request.OpenerDirector()  # without the handlers of file:, ftp: and data:
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _SafeRedirects(allows_http=bool(address.sha256)),
    ):
        opener.add_handler(handler)
    request = urllib.request.Request(address.url, headers={"User-Agent": f"detloom/{detloom.__version__}"})  # noqa: S310
    try:
        response: http.client.HTTPResponse = opener.open(request, timeout=STALL_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        raise _DownloadError(f"the server responded {error.code} {redact(str(error.reason))}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _DownloadError(_describe(error)) from None
    return response


def _check_size(num_bytes: int) -> None:
    if num_bytes > MAX_ARCHIVE_BYTES:
        raise _DownloadError(f"it has {num_bytes:,} bytes or more, allowed: {MAX_ARCHIVE_BYTES:,}")


def _read_some(response: http.client.HTTPResponse) -> bytes:
    """Return what has arrived; errors of the connection are not errors of the disk."""
    try:
        return response.read1(_MAX_READ_BYTES)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _DownloadError(_describe(error)) from None


def _describe(error: object) -> str:
    """Return the cause of a failed connection as part of a sentence."""
    error = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(error, TimeoutError):
        return f"the server sent nothing for {STALL_SECONDS:g} s"
    return redact(str(getattr(error, "strerror", None) or error) or type(error).__name__)


# --- unpack -----------------------------------------------------------------------------------------------------------


class _BoundedStream:
    """A file for tarfile that is read forward, in small pieces and up to a limit.

    A few bytes can state that a name has gigabytes, which tarfile would hold in memory, or that the next member is
    before this one, which tarfile would read again and again.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._position = file, 0

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MAX_READ_BYTES:
            raise _BadArchiveError(f"it has a header of {size:,} bytes, allowed: {_MAX_READ_BYTES:,}")
        data = self._file.read(size)
        self._position += len(data)
        if self._position > MAX_UNPACKED_BYTES:
            raise _too_large()
        return data

    def seek(self, offset: int) -> int:
        if offset < self._position:
            raise _BadArchiveError("its members are not one after the other")
        if offset > MAX_UNPACKED_BYTES:
            raise _too_large()
        while self._position < offset and self.read(min(_MAX_READ_BYTES, offset - self._position)):
            pass
        return self._position

    def tell(self) -> int:
        return self._position


def _too_large() -> _BadArchiveError:
    return _BadArchiveError(f"unpacked, it has more than {MAX_UNPACKED_BYTES:,} bytes")


def _unpack(archive: Path, folder: Path) -> None:
    """Write the checkpoint files of an archive to a new folder.

    Raises:
        _BadArchiveError: if it is damaged or too large, or any of its members is not allowed.
    """
    folder.mkdir()
    try:
        with contextlib.ExitStack() as stack:
            file: Any = stack.enter_context(archive.open("rb"))
            if file.peek(2)[:2] == _GZIP_MAGIC:
                file = stack.enter_context(gzip.GzipFile(fileobj=file))
            stream: Any = _BoundedStream(file)
            tar: Any = stack.enter_context(tarfile.open(fileobj=stream, mode="r:"))
            num_members = 0
            while (member := tar.next()) is not None:
                num_members += 1
                _check_member(member, num_members)
                if _is_wanted(member):
                    _write_member(tar, member, folder)
                tar.members.clear()  # otherwise all headers would be in memory at the end
                tar.pax_headers.clear()
            while stream.read(_MAX_READ_BYTES):  # to the end, where gzip checks the sum of all content
                pass
    except _DAMAGE as error:
        raise _BadArchiveError(f"it is damaged or not a tar archive ({redact(str(error))})") from None


def _check_member(member: tarfile.TarInfo, number: int) -> None:
    """Raise _BadArchiveError unless a member is a folder or a regular file with a relative name.

    This is stricter than tarfile's filter `data`, which older versions of Python lack.
    """
    name, shown = member.name, redact(member.name)
    if number > MAX_FILES:
        raise _BadArchiveError(f"it has more than {MAX_FILES:,} members")
    parts = name.split("/")
    if name.startswith("/") or ".." in parts or "\\" in name or not name.isprintable():
        raise _BadArchiveError(f"its member '{shown}' has an absolute path, '..' or a character that is not allowed")
    size = len(name.encode())
    if size > _MAX_PATH_BYTES or any(len(part.encode()) > _MAX_NAME_BYTES for part in parts):
        raise _BadArchiveError(f"its member '{shown}' has a name that is too long")
    if not (member.isreg() or member.isdir()) or member.issparse():
        raise _BadArchiveError(f"its member '{shown}' is a link or a special file, allowed: regular files and folders")
    if not 0 <= member.size <= MAX_UNPACKED_BYTES:
        raise _too_large()


def _is_wanted(member: tarfile.TarInfo) -> bool:
    """Return True for a file of a checkpoint; the variables of a SavedModel have the same suffixes."""
    if not member.isreg() or _SAVED_MODEL_VARIABLES.fullmatch(member.name):
        return False
    return _CHECKPOINT_FILE.fullmatch(PurePosixPath(member.name).name) is not None


def _write_member(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    path, content = folder / member.name, tar.extractfile(member)
    assert content is not None  # a regular file
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        raise _BadArchiveError(f"it has two members '{redact(member.name)}'")
    with path.open("xb") as file:
        shutil.copyfileobj(content, file, _MAX_READ_BYTES)
