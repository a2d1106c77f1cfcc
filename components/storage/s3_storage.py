"""Read and write objects of a storage with the S3 API (s3://) with boto3, which is imported when needed.

boto3 finds credentials, region and server as all programs of AWS do: AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL_S3, ~/.aws.

It is assumed that a listing shows every object that was written before, and that the server compares `If-None-Match: *`
and `If-Match` of a write with the object before it replaces it, as Amazon S3 has done since 2020 and 2024. Writes, not
copies and deletions, are compared.
"""

import contextlib
import errno
import io
import posixpath
import uuid
from collections.abc import Hashable, Iterator
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
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import redact

_PART_BYTES = 64 << 20  # larger files are uploaded in parts
_MAX_COPY_BYTES = 5 << 30  # S3 copies larger files in parts
_TIMEOUT_SECONDS = 20.0  # without any byte of a response; short, because a lock must be renewed in time
_NUM_TRIES = 8  # of a request
_NUM_DOWNLOADS = 4  # of content that ends early
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LAST_CHARACTER = "\U0010ffff"


class S3Storage(ObjectStorage):
    """A bucket or a part of it. A generation is an ETag, which S3 derives from the content; "" if there is no file."""

    scheme = "s3://"
    always_compares = False

    def status(self, path: str) -> Entry | None:
        found = self._find(path) if path else None
        if found is not None:
            return _entry(path, found["ContentLength"], found["LastModified"])
        with self._os_errors(path):
            listed = self._client.list_objects_v2(Bucket=self._bucket_name, Prefix=self._prefix(path), MaxKeys=1)
        return Entry(path, is_folder=True) if listed.get("KeyCount") else None

    def open(self, path: str) -> BinaryIO:
        """Open a file for streaming; reading raises FileNotFoundError if the file is replaced meanwhile."""
        found = self._find(path)
        if found is None:
            raise missing_file(self.address(path))

        def read_range(start: int, stop: int) -> bytes:
            try:
                return self._get(path, start, stop, IfMatch=found["ETag"])[0]
            except GenerationError:
                raise missing_file(self.address(path)) from None

        return open_object(read_range, found["ContentLength"])

    def read(self, path: str, limit_bytes: int | None = None) -> bytes | None:
        data, generation = self.read_generation(path, limit_bytes)
        return data if generation else None

    def write(self, path: str, data: bytes) -> None:
        self._upload(io.BytesIO(data), path)

    def rename(self, path: str, new_path: str) -> None:
        self.copy(path, new_path)
        self.delete(path)

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._os_errors(path):
            self._client.delete_object(Bucket=self._bucket_name, Key=self._object_name(path))

    def delete_tree(self, path: str = "") -> None:
        with self._os_errors(path):
            names = [found["Key"] for page in self._list_pages(Prefix=self._prefix(path)) for found in page["Contents"]]
        for name in names:
            with contextlib.suppress(FileNotFoundError), self._os_errors(path):
                self._client.delete_object(Bucket=self._bucket_name, Key=name)

    def copy(self, path: str, new_path: str) -> None:
        source = {"Bucket": self._bucket_name, "Key": self._object_name(path)}
        options = self._transfer_options(_MAX_COPY_BYTES)
        with self._os_errors(path):
            self._client.copy(source, self._bucket_name, self._object_name(new_path), Config=options)

    def read_generation(self, path: str, limit_bytes: int | None = None) -> tuple[bytes, Generation]:
        try:
            return self._get(path, 0, None if limit_bytes is None else limit_bytes + 1)
        except FileNotFoundError:
            return b"", ""

    def write_generation(self, path: str, data: bytes, generation: Generation) -> Generation:
        token = uuid.uuid4().hex
        condition = {"IfMatch": generation} if generation else {"IfNoneMatch": "*"}
        target = {"Bucket": self._bucket_name, "Key": self._object_name(path)}
        try:
            with self._os_errors(path):
                written = self._client.put_object(**target, Body=data, Metadata={WRITE_KEY: token}, **condition)
            return str(written["ETag"])
        except (GenerationError, FileNotFoundError) as error:
            if isinstance(error, FileNotFoundError) and not generation:
                raise  # the bucket does not exist; otherwise, the file to replace was deleted
            found = self._find(path)
            is_ours = found is not None and found["Metadata"].get(WRITE_KEY) == token
            return str(found["ETag"]) if found and is_ours else ""

    def delete_generation(self, path: str, generation: Generation) -> None:
        """Delete a file if it has this generation, which is read before, because few servers compare it."""
        found = self._find(path)
        if found is not None and found["ETag"] == generation:
            self.delete(path)

    def read_part(self, path: str, start: int, stop: int) -> bytes:
        return self._get(path, start, stop)[0]

    def read_page(self, folder: str, first: str) -> Page:
        prefix = self._prefix(folder)
        with self._os_errors(folder):
            page = next(self._list_pages(Prefix=prefix, Delimiter="/", StartAfter=_just_before(prefix + first)))
        entries = _entries_by_name(page, folder, prefix)
        return Page(first, max(entries) if page["IsTruncated"] else None, entries)

    def _list_all(self, folder: str) -> Iterator[Entry]:
        prefix = self._prefix(folder)
        with self._os_errors(folder):
            for page in self._list_pages(Prefix=prefix, Delimiter="/"):
                entries = _entries_by_name(page, folder, prefix)
                yield from (entry for name, entry in entries.items() if name.strip("/"))

    def _upload(self, file: IO[bytes], path: str) -> None:
        file.seek(0)
        options = self._transfer_options(_PART_BYTES)
        with self._os_errors(path):
            self._client.upload_fileobj(file, self._bucket_name, self._object_name(path), Config=options)

    def _find(self, path: str) -> dict[str, Any] | None:
        """Return the metadata of an object; None if it is missing."""
        try:
            with self._os_errors(path):
                return dict(self._client.head_object(Bucket=self._bucket_name, Key=self._object_name(path)))
        except FileNotFoundError:
            return None

    def _get(self, path: str, start: int, stop: int | None, **conditions: str) -> tuple[bytes, str]:
        """Return the bytes from `start` to `stop`, or to the end if it is before, and the ETag of the object."""
        from botocore.exceptions import ClientError, IncompleteReadError, ReadTimeoutError, ResponseStreamingError

        target = {"Bucket": self._bucket_name, "Key": self._object_name(path), **conditions}
        if start or stop is not None:
            target["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
        with self._os_errors(path):
            for number in range(_NUM_DOWNLOADS):
                try:
                    found = self._client.get_object(**target)
                    return found["Body"].read(), str(found["ETag"])
                except (IncompleteReadError, ReadTimeoutError, ResponseStreamingError):
                    if number == _NUM_DOWNLOADS - 1:
                        raise
                except ClientError as error:  # an empty object has no first byte
                    if error.response["Error"]["Code"] != "InvalidRange":
                        raise
                    return b"", str(self._client.head_object(Bucket=self._bucket_name, Key=target["Key"])["ETag"])
        raise AssertionError("unreachable")

    def _list_pages(self, **options: Any) -> Iterator[dict[str, Any]]:
        """Yield the responses to a listing."""
        paginator = self._client.get_paginator("list_objects_v2")
        for page in paginator.paginate(
            Bucket=self._bucket_name, PaginationConfig={"PageSize": NAMES_PER_PAGE}, **options
        ):
            yield {"Contents": [], "CommonPrefixes": [], **page}

    def _transfer_options(self, part_bytes: int) -> Any:
        from boto3.s3.transfer import TransferConfig

        return TransferConfig(multipart_threshold=part_bytes, multipart_chunksize=_PART_BYTES, use_threads=False)

    @contextlib.contextmanager
    def _os_errors(self, path: str) -> Iterator[None]:
        with _os_errors(self.address(path)):
            yield

    @property
    def _client(self) -> Any:
        with _os_errors(self.root):
            return _client(process_settings("AWS_", "BOTO_"), _TIMEOUT_SECONDS)


@lru_cache(maxsize=8)
def _client(settings: Hashable, timeout_seconds: float) -> Any:
    """Return the client of this process, which several threads may use; a new one finds credentials and connects."""
    import boto3
    from botocore.config import Config

    config = Config(
        connect_timeout=timeout_seconds,
        read_timeout=timeout_seconds,
        retries={"mode": "standard", "total_max_attempts": _NUM_TRIES},
        max_pool_connections=MAX_CONNECTIONS,
        # Not all servers know the checksums that boto3 adds on its own; a push compares what was stored.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return boto3.session.Session().client("s3", config=config)


def _entries_by_name(page: dict[str, Any], folder: str, prefix: str) -> dict[str, Entry]:
    """Return the entries of a response by their names in the folder; names of subfolders end in "/"."""
    entries: dict[str, Entry] = {}
    for found in page["Contents"]:
        name = found["Key"].removeprefix(prefix)
        entries[name] = _entry(posixpath.join(folder, name), found["Size"], found["LastModified"])
    for found in page["CommonPrefixes"]:
        name = found["Prefix"].removeprefix(prefix)
        entries[name] = Entry(posixpath.join(folder, name.rstrip("/")), is_folder=True)
    return entries


def _entry(path: str, size: int, modified: datetime) -> Entry:
    return Entry(path, size, (modified - _EPOCH) // timedelta(microseconds=1) * 1000)


def _just_before(name: str) -> str:
    """Return a text that is sorted before `name`, after nearly all names that are; S3 lists what comes after a name."""
    head, last = name[:-1], ord(name[-1]) if name else 0
    return head + chr(0xD7FF if last == 0xE000 else last - 1) + _LAST_CHARACTER if last else head


@contextlib.contextmanager
def _os_errors(address: str) -> Iterator[None]:
    """Raise the errors of boto3 as OSError, with the address redacted; InputError if it is not installed."""
    where = redact(address)
    try:
        from boto3.exceptions import Boto3Error
        from botocore import exceptions
    except ModuleNotFoundError:
        raise InputError(f"{where}: s3:// needs boto3; pip install 'detloom[s3]' adds it.") from None
    try:
        yield
    except exceptions.ClientError as error:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        reason = redact(str(error.response.get("Error", {}).get("Message") or error))
        if status in (409, 412):  # 409: another process changes it now
            raise GenerationError(errno.ESTALE, "was changed by another process", where) from None
        if status == 404:
            raise FileNotFoundError(errno.ENOENT, reason, where) from None
        if status in (401, 403):
            raise PermissionError(errno.EACCES, reason, where) from None
        raise OSError(errno.EIO, reason, where) from None
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as error:
        raise PermissionError(errno.EACCES, redact(f"no valid credentials: {error}"), where) from None
    except exceptions.ParamValidationError:  # its text repeats the name, which may contain a password
        raise OSError(errno.EINVAL, "the address does not name a bucket", where) from None
    except (exceptions.BotoCoreError, Boto3Error, ValueError) as error:  # no connection; an endpoint that is no URL
        raise OSError(errno.EIO, redact(str(error)), where) from None
