"""Read and write buckets: gs:// (Cloud Storage), s3:// (Amazon S3, and servers with its API) and az:// (Azure).

The client of all of them is obstore, which is imported when needed. Credentials come from `google.auth.default` or from
the environment variables AWS_... and AZURE_...; STORAGE_EMULATOR_HOST and AWS_ENDPOINT_URL_S3 name other servers.

Each write gives a file a new generation. The storage compares it and replaces the file in one step, so of several
processes that change a file at the same time, one succeeds. If the response to such a request is lost, the client sends
it again, and the storage refuses it although the first one succeeded. Therefore a refused write has failed only if the
file has another content.
"""

import contextlib
import errno
import io
import itertools
import os
import posixpath
import re
import tempfile
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, TypeAlias, TypeVar

from detloom.components.storage.interface import HIDDEN, Entry, Storage, missing_file, open_ranges
from detloom.schemas.reading.redact import redact

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta, PutResult, UpdateVersion
    from obstore.store import GCSCredential, ObjectStore

Generation: TypeAlias = "UpdateVersion | None"
"""One state of a file, as the storage names it; None means that the file does not exist."""

_Result = TypeVar("_Result")
NAMES_PER_PAGE = 1000  # the most that the storages list in one response
_PART_BYTES = 64 << 20  # larger files are uploaded in parts
_TIMEOUT_SECONDS = 120.0  # of a request with its response
_SMALL_FILE_BYTES = 1 << 20
_SMALL_FILE_TIMEOUT_SECONDS = 10.0  # short: a lock must be renewed in time although one request gets no response
_NUM_THREADS = 8
_MAX_RETRIES = 8
_NUM_TRIES = 3  # of a request without a response that the client does not repeat
_MAX_RETRY_SECONDS = 120.0
_FIRST_WAIT_SECONDS = 0.1
_GOOGLE_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
# The default of Cloud Storage lets readers of a public bucket see replaced files for an hour.
_ATTRIBUTES = {"Content-Type": "application/octet-stream", "Cache-Control": "no-store"}
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LAST_CHARACTER = "\U0010ffff"
_VARIABLES = ("GOOGLE_", "STORAGE_EMULATOR_HOST", "AWS_", "AZURE_")  # on which clients depend
_ENDPOINTS = {
    "gs": ("STORAGE_EMULATOR_HOST",),
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "az": ("AZURE_STORAGE_ENDPOINT",),
}
_URL = re.compile(r"https?://[!-~]+")
_BUCKET_NAME = re.compile(r"[A-Za-z0-9._-]+")
_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_DETAILS = "\n\nDebug source"
_MESSAGE = re.compile(r"<Message>(.*?)</Message>", re.DOTALL)


class GenerationError(OSError):
    """The file has another generation than the request requires."""


class BucketStorage(Storage):
    """A bucket or a part of it. A file becomes visible when it is completely written; folders are parts of names."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")
        self._scheme, _, place = self.root.partition("://")
        self._bucket_name, _, self._folder = place.partition("/")

    def list_entries(self, folder: str = "", *, with_hidden: bool = False) -> list[Entry]:
        prefix = self._object_name(folder)
        with self._os_errors(folder):
            listed = self._client().list_with_delimiter(prefix or None)
        entries = [Entry(self._path(name), is_folder=True) for name in listed["common_prefixes"]]
        entries += [self._entry(meta) for meta in listed["objects"] if meta["path"] != prefix]  # of the folder itself
        shown = (entry for entry in entries if with_hidden or not posixpath.basename(entry.path).startswith(HIDDEN))
        return sorted(shown, key=lambda entry: entry.path)

    def iter_entries(self, folder: str = "") -> Iterator[Entry]:
        yield from (entry for name, entry in self.scan(folder) if not name.startswith(HIDDEN))

    def scan(self, folder: str, first: str = "") -> Iterator[tuple[str, Entry]]:
        """Yield names and entries of a folder in the order of its objects' names; names of subfolders end in "/".

        One page of the listing is in memory. Of a large subfolder, few pages are requested.

        Args:
            first: the first name to yield, which need not exist.
        """
        prefix = self._prefix(folder)
        after = _just_before(prefix + first) if first else None
        last = ""
        while True:
            num_inside = 0  # objects of the last subfolder
            for meta, following in itertools.pairwise(itertools.chain(self._objects(folder, after), [None])):
                assert meta is not None
                head, mark, _ = meta["path"].removeprefix(prefix).partition("/")
                num_inside = num_inside + 1 if head + mark == last else 0
                if num_inside == NAMES_PER_PAGE:
                    after = prefix + last + _LAST_CHARACTER
                    break
                is_marker = f"{meta['path']}/" == prefix or _marks_folder(meta, following)
                if not num_inside and not is_marker:
                    last = head + mark
                    yield last, Entry(posixpath.join(folder, head), is_folder=True) if mark else self._entry(meta)
            else:
                return

    def _objects(self, folder: str, after: str | None = None) -> Iterator["ObjectMeta"]:
        """Yield all objects below a folder by name; one page of the listing is in memory."""
        with self._os_errors(folder):
            name = self._object_name(folder)
            for page in self._client().list(name or None, offset=after, chunk_size=NAMES_PER_PAGE):
                yield from (meta for meta in page if after is None or meta["path"] > after)  # Azurite begins anywhere

    def status(self, path: str) -> Entry | None:
        if path:
            with contextlib.suppress(FileNotFoundError), self._os_errors(path):
                return self._entry(self._client().head(self._object_name(path)))
        return Entry(path, is_folder=True) if next(self._objects(path), None) else None

    def open(self, path: str) -> BinaryIO:
        """Open a file for streaming; reading raises FileNotFoundError if the file is replaced meanwhile."""
        with self._os_errors(path):
            meta = self._client().head(self._object_name(path))
        return open_ranges(lambda start, stop: self.read_part(path, start, stop, meta["e_tag"]), meta["size"])

    def read(self, path: str, limit_bytes: int | None = None) -> bytes | None:
        data, generation = self.read_generation(path, limit_bytes)
        return None if generation is None else data

    def read_part(self, path: str, start: int, stop: int, e_tag: str | None = None) -> bytes:
        """Return the bytes from `start` to `stop` of a file that has at least `stop` bytes, by one request.

        Raises:
            FileNotFoundError: the file does not exist, or has another `e_tag`.
        """
        options: GetOptions = {"range": (start, stop)}
        if e_tag is not None:
            options["if_match"] = e_tag
        try:
            with self._os_errors(path):
                return bytes(self._client().get(self._object_name(path), options=options).bytes())
        except GenerationError as error:
            raise FileNotFoundError(errno.ENOENT, error.strerror, error.filename) from None

    def read_generation(
        self, path: str, limit_bytes: int | None = None, timeout_seconds: float | None = None
    ) -> tuple[bytes, Generation]:
        """Return a file's content, cut one byte after the limit, and its generation, by one request."""
        try:
            with self._os_errors(path):
                got = self._client(timeout_seconds).get(self._object_name(path))
                if limit_bytes is None or got.meta["size"] <= limit_bytes:
                    return bytes(got.bytes()), _generation(got.meta)
                return bytes(next(iter(got.stream(limit_bytes + 1))))[: limit_bytes + 1], _generation(got.meta)
        except FileNotFoundError:
            return b"", None

    def write_generation(self, path: str, data: bytes, generation: Generation) -> Generation:
        """Replace a file if it has this generation; create it exclusively if that is None.

        Args:
            data: differs from what another process may write.

        Returns:
            the new generation; None if the file has another generation, and nothing was written.
        """
        timeout_seconds = _SMALL_FILE_TIMEOUT_SECONDS if len(data) <= _SMALL_FILE_BYTES else _TIMEOUT_SECONDS
        client, name = self._client(timeout_seconds), self._object_name(path)

        def write() -> Generation:
            with self._os_errors(path):
                return _generation(client.put(name, data, mode=generation or "create", attributes=_ATTRIBUTES))

        try:
            return _repeat(write)
        except GenerationError:
            stored, current = self.read_generation(path, len(data), timeout_seconds)
            return current if stored == data else None

    def write(self, path: str, data: bytes) -> None:
        self._store(io.BytesIO(data), path)

    @contextlib.contextmanager
    def open_to_write(self, path: str, *, sync: bool = False) -> Iterator[IO[bytes]]:
        with tempfile.TemporaryFile() as file:
            yield file
            file.seek(0)
            self._store(file, path)

    def upload(self, source: Path, path: str) -> None:
        """Copy a local file to `path`."""
        with open(source, "rb") as file:
            self._store(file, path)

    def _store(self, file: IO[bytes], path: str) -> None:
        with self._os_errors(path):
            self._client().put(
                self._object_name(path), file, attributes=_ATTRIBUTES, chunk_size=_PART_BYTES, max_concurrency=1
            )

    def copy(self, path: str, new_path: str) -> None:
        """Copy a file inside the bucket and replace the target; FileNotFoundError if it does not exist."""
        with self._os_errors(path):
            self._client().copy(self._object_name(path), self._object_name(new_path))

    def rename(self, path: str, new_path: str) -> None:
        self.copy(path, new_path)
        self.delete(path)

    def make_folder(self, path: str = "") -> None:
        """Do nothing, because a folder exists as long as it has files."""

    def delete(self, path: str) -> None:
        def delete() -> None:
            with contextlib.suppress(FileNotFoundError), self._os_errors(path):
                self._client().delete(self._object_name(path))

        _repeat(delete)

    def delete_tree(self, path: str = "") -> None:
        """Delete all files below a folder; an object that marks the folder itself is kept."""
        paths = [self._path(meta["path"]) for meta in self._objects(path)]
        with ThreadPoolExecutor(_NUM_THREADS, "delete") as threads:
            list(threads.map(self.delete, paths))

    def _entry(self, meta: "ObjectMeta") -> Entry:
        return Entry(
            self._path(meta["path"]), meta["size"], (meta["last_modified"] - _EPOCH) // timedelta(microseconds=1) * 1000
        )

    def _object_name(self, path: str) -> str:
        return posixpath.join(self._folder, path).rstrip("/")

    def _prefix(self, folder: str) -> str:
        return f"{name}/" if (name := self._object_name(folder)) else ""

    def _path(self, object_name: str) -> str:
        return object_name.removeprefix(f"{self._folder}/") if self._folder else object_name

    def _client(self, timeout_seconds: float | None = None) -> "ObjectStore":
        """Return the client of this process, which several threads may use; a new one finds credentials and connects.

        Raises:
            OSError: the address names no bucket, there are no credentials, or the parent of this process has used a
                client, whose threads did not survive the fork.
        """
        from google.auth.exceptions import GoogleAuthError
        from obstore import exceptions

        where = redact(self.root)
        if not _BUCKET_NAME.fullmatch(self._bucket_name):  # its text is not shown, because it may contain a password
            raise OSError(errno.EINVAL, "the address does not name a bucket", where)
        if _first_process() != os.getpid():
            raise OSError(errno.ENOTSUP, "this process was forked after its parent had used a bucket", where)
        for name in _ENDPOINTS[self._scheme]:
            if os.environ.get(name) == "":
                del os.environ[name]  # the client would read it as an address
            if not _URL.fullmatch(os.environ.get(name, "http://none")):  # the client would panic
                raise OSError(errno.EINVAL, f"{name} must be a URL such as http://host:9000", where)
        settings = tuple(sorted(each for each in os.environ.items() if each[0].startswith(_VARIABLES)))
        try:
            return _open_client(self._scheme, self._bucket_name, timeout_seconds or _TIMEOUT_SECONDS, settings)
        except GoogleAuthError as error:
            raise PermissionError(errno.EACCES, redact(f"no valid credentials: {error}"), where) from None
        except (exceptions.BaseError, ValueError) as error:  # a variable of the environment has no valid value
            raise OSError(errno.EINVAL, _reason(str(error)), where) from None

    @contextlib.contextmanager
    def _os_errors(self, path: str) -> Iterator[None]:
        """Raise the errors of the client as OSError, with the address redacted."""
        from obstore import exceptions

        where = redact(self.address(path))
        try:
            yield
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            raise GenerationError(errno.ESTALE, "was changed by another process", where) from None
        except ValueError as error:  # no file can have this name
            raise FileNotFoundError(errno.ENOENT, redact(str(error)), where) from None
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise PermissionError(errno.EACCES, _reason(str(error)), where) from None
        except exceptions.BaseError as error:
            raise _os_error(str(error), where) from None
        except FileNotFoundError:
            raise missing_file(where) from None


@lru_cache(maxsize=1)
def _first_process() -> int:
    """Return the process that calls it first; a forked one gets the answer of its parent."""
    return os.getpid()


@lru_cache(maxsize=8)
def _open_client(scheme: str, bucket_name: str, timeout_seconds: float, settings: Hashable) -> "ObjectStore":
    from obstore.store import AzureStore, GCSStore, S3Store

    options: dict[str, Any] = {
        "client_options": {"timeout": timedelta(seconds=timeout_seconds), "allow_http": True},
        "retry_config": {
            "max_retries": _MAX_RETRIES,
            "retry_timeout": timedelta(seconds=_MAX_RETRY_SECONDS),
            "backoff": {"init_backoff": timedelta(seconds=_FIRST_WAIT_SECONDS)},
        },
    }
    match scheme:
        case "s3":
            # Not all servers know the request that deletes several objects.
            return S3Store(bucket_name, config={"disable_bulk_delete": True}, **options)
        case "az":
            return AzureStore(bucket_name, **options)
    if server := os.environ.get("STORAGE_EMULATOR_HOST"):
        token: GCSCredential = {"token": "none", "expires_at": None}
        return GCSStore(bucket_name, config={"base_url": server}, credential_provider=lambda: token, **options)
    import google.auth
    from obstore.auth.google import GoogleCredentialProvider

    credentials, _ = google.auth.default(scopes=[_GOOGLE_SCOPE])
    return GCSStore(bucket_name, credential_provider=GoogleCredentialProvider(credentials), **options)


def _repeat(request: Callable[[], _Result]) -> _Result:
    """Repeat a request that got no response in time; the client itself repeats only reads, uploads and copies."""
    for _ in range(_NUM_TRIES - 1):
        with contextlib.suppress(TimeoutError):
            return request()
    return request()


def _generation(facts: "ObjectMeta | PutResult") -> "UpdateVersion":
    """Return the generation; a missing value would be an error when it is passed on."""
    generation: UpdateVersion = {}
    if facts["e_tag"] is not None:
        generation["e_tag"] = facts["e_tag"]
    if facts["version"] is not None:
        generation["version"] = facts["version"]
    return generation


def _marks_folder(meta: "ObjectMeta", following: "ObjectMeta | None") -> bool:
    """Return whether an object is the empty "NAME/" of a folder with files; the client drops the slash."""
    return not meta["size"] and following is not None and following["path"].startswith(f"{meta['path']}/")


def _just_before(name: str) -> str:
    """Return a text that is sorted before `name`, after nearly all names that are; a listing starts after a name."""
    head, last = name[:-1], ord(name[-1])
    before = {ord("0"): ord("."), 0xE000: 0xD7FF}.get(last, last - 1)  # no part of a name is empty
    return head + chr(before) + _LAST_CHARACTER if before >= ord(" ") else head


def _os_error(text: str, where: str) -> OSError:
    """Return the error of a request by the status of the response, which the client only writes into its text."""
    reason, status = _reason(text), _STATUS.search(text)
    match status[1] if status else "":
        case "404":
            return FileNotFoundError(errno.ENOENT, reason, where)
        case "401" | "403":
            return PermissionError(errno.EACCES, reason, where)
    return OSError(errno.ETIMEDOUT if "kind: Timeout" in text else errno.EIO, reason, where)


def _reason(text: str) -> str:
    """Return the sentence in the response, or else the error without its details."""
    text = text.partition(_DETAILS)[0]
    message = _MESSAGE.search(text)
    return redact(message[1] if message else text)
