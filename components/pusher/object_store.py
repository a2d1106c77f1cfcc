"""Versions in a storage without rename, such as gs:// or s3://, through TFX's filesystem layer.

A version is written under its own number: first all other files, then `saved_model.pb`, without which no server loads
it, and last the manifest. A version is complete if its manifest exists and can be parsed.

    1760000000/...              one version; assets.extra/push_manifest.json exists once it is complete
    push_record.jsonl           rewritten as a whole, because objects cannot be appended to
    .push-1760000000            marks a version that is being written; remains if the push is killed
    .trash-1750000000           marks a version that is being deleted
    .push.lock/                 claims, see locks.py
"""

import contextlib
import errno
import posixpath
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from detloom.components.pusher.destination import (
    LOCK_NAME,
    MODEL_FILE,
    TEMPORARY_PREFIX,
    TRASH_PREFIX,
    leftover_number,
    version_numbers,
)
from detloom.components.pusher.load_check import LoadCheck
from detloom.components.pusher.locks import LEASE_SECONDS, ClaimLock
from detloom.components.pusher.manifest import (
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    MAX_RECORD_BYTES,
    RECORD_FILE,
    Files,
    Manifest,
    differences,
    measure_files,
    measure_stream,
    parse_manifest,
)
from detloom.components.storage.storage import AddressStorage, Storage
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import redact
from detloom.trainer_module.files.folder_lock import describe_self


class ObjectStore:
    """A `Destination` where an object becomes visible when it is written, and nothing can be renamed."""

    requires_manifest = True

    def __init__(self, address: str, lease_seconds: float = LEASE_SECONDS) -> None:
        self.storage, self._lease_seconds = AddressStorage(address), lease_seconds
        self.address = self.storage.root

    @contextlib.contextmanager
    def lock(self, limit_seconds: float, run_id: str = "") -> Iterator[Callable[[], None]]:
        with contextlib.ExitStack() as stack:
            try:
                self.storage.make_folder(LOCK_NAME)
                lock = ClaimLock(self.storage, describe_self(run_id), lease_seconds=self._lease_seconds)
                check_held = stack.enter_context(lock.hold(limit_seconds))
            except OSError as error:
                reason = error.strerror or error
                raise InputError(f"{redact(self.address)}: models cannot be pushed here ({reason}).") from None
            yield check_held

    def names(self) -> list[str]:
        return self.storage.list_names(with_hidden=True)

    def versions(self) -> list[int]:
        return version_numbers(self.names())

    def read(self, name: str, limit_bytes: int) -> bytes | None:
        return self.storage.read(name, limit_bytes)

    def measure(self, version: int) -> Files:
        names = (name for name in _find_objects(self.storage, str(version)) if name != MANIFEST_FILE)
        return {name: self._read_back(f"{version}/{name}", None) for name in names}

    def remove_leftovers(self) -> None:
        for name in self.names():
            number = leftover_number(name)
            if number is not None:
                if name.startswith(TRASH_PREFIX) or not self._has_manifest(number):
                    self._remove_tree(number)
                self.storage.delete(name)

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
            self.storage.write(mark, describe_self().encode())
            with tempfile.TemporaryDirectory(prefix="detloom-push-") as scratch:
                for name in sorted(sources, key=lambda name: name == MODEL_FILE):
                    copy = Path(scratch, name)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    if name == MODEL_FILE:  # uploaded last: as soon as it exists, a server can load the version
                        shutil.copyfile(sources[name], copy)
                    else:
                        check_held()
                        self.storage.upload(sources[name], f"{version}/{name}")
                        self._read_back(f"{version}/{name}", copy)
                found = measure_files({name: Path(scratch, name) for name in sources}).files
                self._check_same(version, manifest.files, found)
                check(Path(scratch))
            check_held()
            self.storage.upload(sources[MODEL_FILE], f"{version}/{MODEL_FILE}")
            read_back = self._read_back(f"{version}/{MODEL_FILE}", None)
            self._check_same(version, {MODEL_FILE: manifest.files[MODEL_FILE]}, {MODEL_FILE: read_back})
            check_held()
            self.storage.write(f"{version}/{MANIFEST_FILE}", manifest.to_text().encode())
            if not self._has_manifest(version):
                raise OSError(errno.EIO, "the manifest was not stored as written", f"{self.address}/{version}")
        except BaseException:  # also Ctrl-C
            with contextlib.suppress(OSError):
                check_held()  # if the lock is lost, leave the removal to its next owner
                self._remove_tree(version)
                self.storage.delete(mark)
            raise
        with contextlib.suppress(OSError):  # the next push removes it
            self.storage.delete(mark)

    def append_record(self, line: str) -> None:
        before = self.read(RECORD_FILE, MAX_RECORD_BYTES) or b""
        if len(before) > MAX_RECORD_BYTES:
            raise OSError(errno.EFBIG, "the push record is too large to be rewritten", RECORD_FILE)
        newline = b"" if before[-1:] in (b"\n", b"") else b"\n"
        self.storage.write(RECORD_FILE, before + newline + f"{line}\n".encode())

    def remove_version(self, version: int) -> None:
        mark = f"{TRASH_PREFIX}{version}"
        self.storage.write(mark, describe_self().encode())
        self._remove_tree(version)
        self.storage.delete(mark)

    @contextlib.contextmanager
    def fetch(self, version: int) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="detloom-version-") as scratch:
            download(f"{self.address}/{version}", Path(scratch))
            yield Path(scratch)

    def _has_manifest(self, version: int) -> bool:
        data = self.read(f"{version}/{MANIFEST_FILE}", MAX_MANIFEST_BYTES)
        return data is not None and parse_manifest(data) is not None

    def _read_back(self, name: str, copy: Path | None) -> tuple[int, str]:
        return _read_object(self.storage, name, copy)

    def _check_same(self, version: int, expected: Files, found: Files) -> None:
        wrong = differences(expected, found)
        if wrong:
            raise OSError(
                errno.EIO, f"the copy differs from the original: {'; '.join(wrong[:3])}", f"{self.address}/{version}"
            )

    def _remove_tree(self, version: int) -> None:
        """Remove a version: first the manifest, then the file without which it cannot be loaded, then the rest."""
        for name in (MANIFEST_FILE, MODEL_FILE):
            self.storage.delete(f"{version}/{name}")
        self.storage.delete_tree(str(version))


def download(address: str, folder: Path) -> None:
    """Copy all files under an address except a push manifest.

    Raises:
        InputError: the name of an object points out of the folder.
        OSError: the storage does not respond.
    """
    storage = AddressStorage(address)
    for name in _find_objects(storage):
        if name != MANIFEST_FILE:
            copy = folder / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            _read_object(storage, name, copy)


def _find_objects(storage: Storage, folder: str = "") -> list[str]:
    """Return the names of all objects in a folder, relative to it and sorted.

    Raises:
        InputError: a name that would point out of the folder that it is copied to.
    """
    found: list[str] = []
    folders = [""]
    while folders:
        inside = folders.pop()
        for name in storage.list_names(posixpath.join(folder, inside), with_hidden=True):
            path = posixpath.join(inside, name)
            if name in (".", "..") or {"/", "\0"} & set(name):
                where = redact(storage.address(folder))
                raise InputError(f"{where}: got a file named {redact(path)}, allowed: names inside the folder.")
            (folders if storage.is_folder(posixpath.join(folder, path)) else found).append(path)
    return sorted(found)


def _read_object(storage: Storage, name: str, copy: Path | None) -> tuple[int, str]:
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(storage.open(name))
        return measure_stream(file, stack.enter_context(open(copy, "wb")) if copy else None)
