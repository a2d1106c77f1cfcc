"""Read and write objects of Cloud Storage (gs://) with Google's client.

The client finds credentials as `google.auth.default` does, and honours STORAGE_EMULATOR_HOST. It repeats requests after
temporary errors, for up to two minutes. Google's modules are imported when needed.
"""

import base64
import contextlib
import errno
import io
import os
import posixpath
import uuid
from collections.abc import Callable, Hashable, Iterator
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import IO, Any, BinaryIO

from detloom.components.storage.interface import Entry
from detloom.components.storage.object_storage import (
    MAX_CONNECTIONS,
    NAMES_PER_PAGE,
    WRITE_KEY,
    Generation,
    GenerationError,
    ObjectStorage,
    Page,
    missing_file,
    open_object,
    process_settings,
)
from detloom.schemas.reading.redact import redact

_TIMEOUT_SECONDS = 60.0  # without any byte of a response
_SMALL_FILE_TIMEOUT_SECONDS = 10.0  # short: a lock must be renewed in time although one request gets no response
_FIELDS = "items(name,size,updated),prefixes,nextPageToken"  # of a page of a listing
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class GoogleStorage(ObjectStorage):
    """A bucket of Cloud Storage or a part of it. A generation is a positive number; 0 if the file does not exist."""

    scheme = "gs://"
    always_compares = True

    def status(self, path: str) -> Entry | None:
        blob = self._find(path) if path else None
        if blob is not None:
            return entry_of(path, blob)
        with os_errors(self.address(path)):
            is_folder = any(True for _ in self._bucket.list_blobs(1, prefix=self._prefix(path), **request_options()))
        return Entry(path, is_folder=True) if is_folder else None

    def open(self, path: str) -> BinaryIO:
        """Open a file for streaming; reading raises FileNotFoundError if the file is replaced meanwhile."""
        blob = self._find(path)
        if blob is None:
            raise missing_file(self.address(path))
        return open_object(lambda start, stop: _download(blob, start, stop, self.address(path)), blob.size)

    def read(self, path: str, limit_bytes: int | None = None) -> bytes | None:
        """Return the content of a file, cut one byte after the limit, usually by one request; None if it is missing."""
        if limit_bytes is not None:
            data, is_whole = self._read_at_once(path, limit_bytes)
            if is_whole:
                return data
        data, generation = self.read_generation(path, limit_bytes)
        return data if generation else None

    def write(self, path: str, data: bytes) -> None:
        self._upload(io.BytesIO(data), path)

    def rename(self, path: str, new_path: str) -> None:
        with os_errors(self.address(path)):
            self._rewrite(path, self._new_blob(new_path))
        self.delete(path)

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError), os_errors(self.address(path)):
            self._bucket.blob(self._object_name(path)).delete(**request_options())

    def delete_tree(self, path: str = "") -> None:
        with os_errors(self.address(path)):
            blobs = list(self._bucket.list_blobs(prefix=self._prefix(path), **request_options()))
        for blob in blobs:
            with contextlib.suppress(FileNotFoundError), os_errors(self.address(path)):
                self._bucket.blob(blob.name).delete(**request_options())

    def copy(self, path: str, new_path: str) -> None:
        if not self._write_once(new_path, lambda new: self._rewrite(path, new, if_generation_match=0)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), redact(self.address(new_path)))

    def read_generation(self, path: str, limit_bytes: int | None = None) -> tuple[bytes, int]:
        while (blob := self._find(path)) is not None:
            generation, stop = int(blob.generation), blob.size if limit_bytes is None else limit_bytes + 1
            with contextlib.suppress(FileNotFoundError):  # replaced between the two requests
                return _download(blob, 0, min(stop, blob.size), self.address(path)), generation
        return b"", 0

    def write_generation(self, path: str, data: bytes, generation: Generation) -> int:
        def upload(new: Any) -> None:
            options = {**request_options(), "timeout": _SMALL_FILE_TIMEOUT_SECONDS, "checksum": None}
            new.upload_from_file(io.BytesIO(data), size=len(data), if_generation_match=generation, **options)

        return self._write_once(path, upload)

    def delete_generation(self, path: str, generation: Generation) -> None:
        with contextlib.suppress(FileNotFoundError, GenerationError), os_errors(self.address(path)):
            self._bucket.blob(self._object_name(path)).delete(if_generation_match=generation, **request_options())

    def read_part(self, path: str, start: int, stop: int) -> bytes:
        return _download(self._bucket.blob(self._object_name(path)), start, stop, self.address(path))

    def read_page(self, folder: str, first: str) -> Page:
        prefix = self._prefix(folder)
        with os_errors(self.address(folder)):
            listing = self._bucket.list_blobs(
                prefix=prefix,
                delimiter="/",
                start_offset=prefix + first,
                page_size=NAMES_PER_PAGE,
                fields=_FIELDS,
                **request_options(),
            )
            entries: dict[str, Entry] = {}
            for page in listing.pages:  # a page may be empty although others follow
                for blob in page:
                    name = blob.name.removeprefix(prefix)
                    entries[name] = entry_of(posixpath.join(folder, name), blob)
                for found in listing.prefixes:
                    name = found.removeprefix(prefix)
                    entries[name] = Entry(f"{folder}/{name}".strip("/"), is_folder=True)
                if entries:
                    break
        return Page(first, max(entries) if listing.next_page_token else None, entries)

    def _read_at_once(self, path: str, limit_bytes: int) -> tuple[bytes | None, bool]:
        """Return the content of a file as `read` does, and whether it is known to be complete.

        Cloud Storage sends the checksum of the whole file with each part of it.
        """
        import google_crc32c
        from google.api_core.exceptions import NotFound, RequestRangeNotSatisfiable

        blob = self._bucket.blob(self._object_name(path))
        options = {"end": limit_bytes, "raw_download": True, "checksum": None}
        with os_errors(self.address(path)):
            try:
                data = blob.download_as_bytes(start=0, **options, **request_options())
            except NotFound:
                return None, True
            except RequestRangeNotSatisfiable:
                return b"", True  # an empty file has no first byte
        if len(data) > limit_bytes:
            return data, True
        return data, base64.b64encode(google_crc32c.Checksum(data).digest()).decode() == blob.crc32c

    def _write_once(self, path: str, write: Callable[[Any], None]) -> int:
        """Call `write`, a conditional request for a new object; return its generation, or 0 if it was refused."""
        token = uuid.uuid4().hex
        try:
            with os_errors(self.address(path)):
                new = self._new_blob(path)
                new.metadata = {WRITE_KEY: token}
                write(new)
                return int(new.generation)
        except GenerationError:
            found = self._find(path)
            is_ours = found is not None and (found.metadata or {}).get(WRITE_KEY) == token
            return int(found.generation) if is_ours else 0

    def _list_all(self, folder: str) -> Iterator[Entry]:
        prefix = self._prefix(folder)
        with os_errors(self.address(folder)):
            listing = self._bucket.list_blobs(prefix=prefix, delimiter="/", fields=_FIELDS, **request_options())
            for page in listing.pages:
                for blob in page:
                    if name := blob.name.removeprefix(prefix):
                        yield entry_of(posixpath.join(folder, name), blob)
                for found in listing.prefixes:
                    if name := found.removeprefix(prefix).strip("/"):
                        yield Entry(posixpath.join(folder, name), is_folder=True)
                listing.prefixes.clear()  # the client adds those of the next page

    def _upload(self, file: IO[bytes], path: str) -> None:
        size = file.seek(0, os.SEEK_END)
        with os_errors(self.address(path)):
            self._new_blob(path).upload_from_file(file, rewind=True, size=size, checksum=None, **request_options())

    def _rewrite(self, path: str, new: Any, **conditions: int) -> None:
        """Copy a file to a new object; a copy to another storage class may take several requests."""
        source, token = self._bucket.blob(self._object_name(path)), None
        while True:
            token, _, _ = new.rewrite(source, token, **conditions, **request_options())
            if token is None:
                return

    def _find(self, path: str) -> Any:
        """Return the object with its metadata, which pins later downloads to its generation; None if it is missing."""
        with os_errors(self.address(path)):
            options = {**request_options(), "timeout": _SMALL_FILE_TIMEOUT_SECONDS}
            return self._bucket.get_blob(self._object_name(path), **options)

    def _new_blob(self, path: str) -> Any:
        blob = self._bucket.blob(self._object_name(path))
        blob.content_type = "application/octet-stream"
        blob.cache_control = "no-store"  # the default lets readers of a public bucket see replaced files for an hour
        return blob

    @property
    def _bucket(self) -> Any:
        return _client(process_settings("GOOGLE_", "STORAGE_EMULATOR_HOST")).bucket(self._bucket_name)


@lru_cache(maxsize=8)
def _client(settings: Hashable) -> Any:
    """Return the client of this process, which several threads may use; a new one finds credentials and connects."""
    from google.cloud import storage
    from requests.adapters import HTTPAdapter

    client = storage.Client(project=None)
    for scheme in ("https://", "http://"):
        client._http.mount(scheme, HTTPAdapter(pool_maxsize=MAX_CONNECTIONS))
    return client


def _download(blob: Any, start: int, stop: int, address: str) -> bytes:
    """Return these bytes of an object that is at least `stop` bytes long.

    requests does not notice that a connection ended early, so the rest is requested again.
    """
    data = b""
    with os_errors(address):
        while (first := start + len(data)) < stop:
            part = blob.download_as_bytes(
                start=first, end=stop - 1, raw_download=True, checksum=None, **request_options()
            )
            if not part:
                raise OSError(errno.EIO, "the storage sent no data")
            data += part
    return data


def entry_of(path: str, blob: Any) -> Entry:
    return Entry(path, blob.size, (blob.updated - _EPOCH) // timedelta(microseconds=1) * 1000)


def request_options() -> dict[str, Any]:
    """Return the options of each request; requests that are not conditional can be repeated as well."""
    from google.cloud.storage.retry import DEFAULT_RETRY

    return {"timeout": _TIMEOUT_SECONDS, "retry": DEFAULT_RETRY}


@contextlib.contextmanager
def os_errors(address: str) -> Iterator[None]:
    """Raise the errors of Google's client as OSError, with the address redacted."""
    from google.api_core import exceptions
    from google.auth.exceptions import GoogleAuthError

    where = redact(address)
    try:
        yield
    except exceptions.PreconditionFailed:
        raise GenerationError(errno.ESTALE, "was changed by another process", where) from None
    except exceptions.NotFound as error:
        raise FileNotFoundError(errno.ENOENT, _reason(error), where) from None
    except (exceptions.Unauthorized, exceptions.Forbidden) as error:
        raise PermissionError(errno.EACCES, _reason(error), where) from None
    except GoogleAuthError as error:
        raise PermissionError(errno.EACCES, redact(f"no valid credentials: {error}"), where) from None
    except exceptions.GoogleAPIError as error:
        raise OSError(errno.EIO, _reason(error), where) from None
    except (OSError, ValueError) as error:  # no connection; a name that no bucket can have
        raise OSError(errno.EIO, redact(str(error)), where) from None


def _reason(error: Any) -> str:
    """Return the sentence of Cloud Storage without the address of the request."""
    response: Any = getattr(error, "response", None)  # of a download, which the client does not parse
    with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
        return redact(str(response.json()["error"]["message"]))
    return redact(str(error))
