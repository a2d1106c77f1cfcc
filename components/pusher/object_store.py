"""Versions in a storage without rename, such as gs:// or s3://, through TFX's filesystem layer.

A version is written under its own number: other files first, `saved_model.pb`, without which nothing loads it, next to
last, the manifest last. A version is complete when its manifest is there and says what is there.

    1760000000/...              one version, with assets.extra/push_manifest.json when it is complete
    push_record.jsonl           written anew as a whole: an object cannot be appended to
    .push-1760000000            says that this version is being written; a killed push leaves it
    .trash-1750000000           says that this version is being deleted
    .push.lock/                 claims, see claim_lock.py
"""

import contextlib
import errno
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import tensorflow as tf
from tfx.dsl.io import fileio

from detloom.components.pusher.claim_lock import LEASE_SECONDS, ClaimLock
from detloom.components.pusher.destination import (
    LOCK_NAME,
    MODEL_FILE,
    TEMPORARY_PREFIX,
    TRASH_PREFIX,
    leftover_number,
    version_numbers,
)
from detloom.components.pusher.folder_lock import describe_self
from detloom.components.pusher.load_check import LoadCheck
from detloom.components.pusher.manifest import (
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    Files,
    Manifest,
    differences,
    measure_files,
    measure_stream,
    parse_manifest,
)
from detloom.components.pusher.push_record import MAX_RECORD_BYTES, RECORD_FILE
from detloom.schemas.errors import InputError
from detloom.schemas.redact import redact

_NOT_FOUND = (FileNotFoundError, fileio.NotFoundError, tf.errors.NotFoundError)
_MAX_CLAIM_BYTES = 4096


@contextlib.contextmanager
def _plain_errors(address: str) -> Iterator[None]:
    """TensorFlow's errors as OSError."""
    try:
        yield
    except (tf.errors.OpError, NotImplementedError) as error:
        raise OSError(errno.EIO, str(error)[:300], redact(address)) from None


class ObjectStore:
    """A `Destination` where a name becomes visible when its bytes are written, and nothing can be renamed."""

    requires_manifest = True

    def __init__(self, address: str, lease_seconds: float = LEASE_SECONDS) -> None:
        self.address, self._lease_seconds = address.rstrip("/"), lease_seconds

    @contextlib.contextmanager
    def lock(self, limit_seconds: float, run_id: str = "") -> Iterator[Callable[[], None]]:
        with contextlib.ExitStack() as stack:
            try:
                with _plain_errors(self.address):
                    fileio.makedirs(self._at(LOCK_NAME))
                lock = ClaimLock(_Claims(self), describe_self(run_id), lease_seconds=self._lease_seconds)
                check_held = stack.enter_context(lock.hold(limit_seconds))
            except OSError as error:
                reason = error.strerror or error
                raise InputError(f"{redact(self.address)}: models cannot be pushed here ({reason}).") from None
            yield check_held

    def names(self, folder: str = "") -> list[str]:
        with _plain_errors(self.address):
            try:
                return sorted({str(name).rstrip("/") for name in fileio.listdir(self._at(folder))} - {""})
            except _NOT_FOUND:
                return []

    def versions(self) -> list[int]:
        return version_numbers(self.names())

    def read(self, name: str, limit_bytes: int) -> bytes | None:
        with _plain_errors(self.address):
            try:
                with fileio.open(self._at(name), "rb") as file:
                    return bytes(file.read(limit_bytes + 1))
            except _NOT_FOUND:
                return None

    def write(self, name: str, data: bytes) -> None:
        """As one object."""
        with _plain_errors(self.address), fileio.open(self._at(name), "wb") as file:
            file.write(data)

    def remove(self, name: str) -> None:
        """A file; one that is not there is removed already."""
        with _plain_errors(self.address), contextlib.suppress(*_NOT_FOUND):
            fileio.remove(self._at(name))

    def measure(self, version: int) -> Files:
        return {name: self._read_back(f"{version}/{name}", None) for name in self._files_of(version)}

    def remove_leftovers(self) -> None:
        for name in self.names():
            number = leftover_number(name)
            if number is not None:
                if name.startswith(TRASH_PREFIX) or not self._has_manifest(number):
                    self._remove_tree(number)
                self.remove(name)

    def place(
        self,
        version: int,
        sources: Mapping[str, Path],
        manifest: Manifest,
        check: LoadCheck,
        check_held: Callable[[], None],
    ) -> None:
        mark = f"{TEMPORARY_PREFIX}{version}"
        check_held()
        try:
            self.write(mark, describe_self().encode())
            with tempfile.TemporaryDirectory(prefix="detloom-push-") as scratch:
                for name in sorted(sources, key=lambda name: name == MODEL_FILE):
                    copy = Path(scratch, name)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    if name == MODEL_FILE:  # a version can be loaded as soon as it is there: the rest is checked before
                        shutil.copyfile(sources[name], copy)
                    else:
                        check_held()
                        self._upload(sources[name], f"{version}/{name}")
                        self._read_back(f"{version}/{name}", copy)
                found = measure_files({name: Path(scratch, name) for name in sources}).files
                self._check_same(version, manifest.files, found)
                check(Path(scratch))
            check_held()
            self._upload(sources[MODEL_FILE], f"{version}/{MODEL_FILE}")
            read_back = self._read_back(f"{version}/{MODEL_FILE}", None)
            self._check_same(version, {MODEL_FILE: manifest.files[MODEL_FILE]}, {MODEL_FILE: read_back})
            check_held()
            self.write(f"{version}/{MANIFEST_FILE}", manifest.to_text().encode())
            if not self._has_manifest(version):
                raise OSError(errno.EIO, "the manifest was not stored as written", f"{self.address}/{version}")
        except BaseException:  # also Ctrl-C
            with contextlib.suppress(OSError):
                check_held()  # who lost the lock touches nothing: its next owner has cleared this away, or will
                self._remove_tree(version)
                self.remove(mark)
            raise
        with contextlib.suppress(OSError):  # the next push removes it
            self.remove(mark)

    def append_record(self, line: str) -> None:
        before = self.read(RECORD_FILE, MAX_RECORD_BYTES) or b""
        if len(before) > MAX_RECORD_BYTES:
            raise OSError(errno.EFBIG, "the push record is too large to be written anew", RECORD_FILE)
        newline = b"" if before[-1:] in (b"\n", b"") else b"\n"
        self.write(RECORD_FILE, before + newline + f"{line}\n".encode())

    def remove_version(self, version: int) -> None:
        mark = f"{TRASH_PREFIX}{version}"
        self.write(mark, describe_self().encode())
        self._remove_tree(version)
        self.remove(mark)

    @contextlib.contextmanager
    def fetch(self, version: int) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="detloom-version-") as scratch:
            download(self._at(str(version)), Path(scratch))
            yield Path(scratch)

    def _at(self, name: str) -> str:
        return f"{self.address}/{name}" if name else self.address

    def _files_of(self, version: int) -> list[str]:
        """Names relative to the version, sorted, without the manifest."""
        return [name for name in _find_objects(self._at(str(version))) if name != MANIFEST_FILE]

    def _has_manifest(self, version: int) -> bool:
        data = self.read(f"{version}/{MANIFEST_FILE}", MAX_MANIFEST_BYTES)
        return data is not None and parse_manifest(data) is not None

    def _upload(self, source: Path, name: str) -> None:
        with _plain_errors(self.address):
            fileio.makedirs(self._at(name).rpartition("/")[0])
            with open(source, "rb") as read_from, fileio.open(self._at(name), "wb") as write_to:
                shutil.copyfileobj(read_from, write_to, 1 << 20)

    def _read_back(self, name: str, copy: Path | None) -> tuple[int, str]:
        return _read_object(self._at(name), copy)

    def _check_same(self, version: int, expected: Files, found: Files) -> None:
        wrong = differences(expected, found)
        if wrong:
            raise OSError(
                errno.EIO, f"the copy differs from the original: {'; '.join(wrong[:3])}", f"{self.address}/{version}"
            )

    def _remove_tree(self, version: int) -> None:
        """First what makes it complete, then what makes it load, then the rest."""
        for name in (MANIFEST_FILE, MODEL_FILE):
            self.remove(f"{version}/{name}")
        with _plain_errors(self.address), contextlib.suppress(*_NOT_FOUND):
            fileio.rmtree(self._at(str(version)))


def download(address: str, folder: Path) -> None:
    """Copy what lies under an address, but for a manifest.

    Raises:
        InputError: an object's name leads out of the folder.
        OSError: the storage does not answer.
    """
    for name in _find_objects(address):
        if name != MANIFEST_FILE:
            copy = folder / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            _read_object(f"{address.rstrip('/')}/{name}", copy)


def _find_objects(address: str) -> list[str]:
    """Names relative to the address, sorted.

    Raises:
        InputError: a name that would lead out of the folder that it is copied to.
    """
    top, found = address.rstrip("/"), []
    with _plain_errors(top), contextlib.suppress(*_NOT_FOUND):
        for folder, _, names in fileio.walk(top):
            inside = str(folder).rstrip("/").removeprefix(top).strip("/")
            found += [f"{inside}/{name}" if inside else str(name) for name in names]
    for name in found:
        if {"", ".", ".."} & set(name.split("/")) or PurePosixPath(name).is_absolute() or "\0" in name:
            raise InputError(f"{redact(top)}: got a file named {redact(name)}, allowed: names inside the folder.")
    return sorted(found)


def _read_object(address: str, copy: Path | None) -> tuple[int, str]:
    with _plain_errors(address), contextlib.ExitStack() as stack:
        file: Any = stack.enter_context(fileio.open(address, "rb"))
        return measure_stream(file, stack.enter_context(open(copy, "wb")) if copy else None)


class _Claims:
    """The claims of `ClaimLock`, as objects."""

    def __init__(self, store: ObjectStore) -> None:
        self._store, self.where = store, redact(store.address)

    def names(self) -> list[str]:
        return self._store.names(LOCK_NAME)

    def read(self, name: str) -> str | None:
        data = self._store.read(f"{LOCK_NAME}/{name}", _MAX_CLAIM_BYTES)
        return None if data is None else data.decode("utf-8", errors="replace")

    def write(self, name: str, text: str) -> None:
        self._store.write(f"{LOCK_NAME}/{name}", text.encode())

    def remove(self, name: str) -> None:
        self._store.remove(f"{LOCK_NAME}/{name}")
