"""Versions in a bucket, where a folder cannot be renamed.

A version becomes complete by one object, `saved_model.pb`, without which no server loads it: it is written after all
other files, the manifest included, and deleted before them. A version is complete if it has both.

    1760000000/...              one version
    push_record.jsonl           rewritten as a whole, because objects cannot be appended to
    config.pbtxt                for Triton, see triton_config.py
    .push-1760000000/...        a copy of a version that is being written, and its owner
    .trash-1750000000/...       marks a version that is being deleted
    .push.lock                  the lock, see bucket_lock.py
"""

import contextlib
import errno
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from detloom.components.pusher.bucket_lock import BucketLock
from detloom.components.pusher.destination import (
    LOCK_NAME,
    MODEL_FILE,
    TEMPORARY_PREFIX,
    TRASH_PREFIX,
    leftover_number,
)
from detloom.components.pusher.load_check import LoadCheck
from detloom.components.pusher.manifest import (
    MAX_MANIFEST_BYTES,
    MAX_RECORD_BYTES,
    RECORD_FILE,
    Files,
    Manifest,
    check_same,
    copy_and_check,
    measure_files,
    measure_stream,
    parse_manifest,
)
from detloom.components.storage.bucket import BucketStorage
from detloom.components.storage.local_copy import copy_folder, find_files
from detloom.schemas.contracts.detections import MANIFEST_FILE, ONNX_FILE
from detloom.schemas.contracts.version_names import parse_versions
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import redact
from detloom.trainer_module.files.folder_lock import describe_self

_OWNER_FILE = "owner.json"  # in a folder that marks a version


class PushBucket:
    """A `Destination` where a file becomes visible when it is completely written."""

    requires_manifest = True

    def __init__(self, storage: BucketStorage) -> None:
        self.storage, self.address = storage, storage.root

    @contextlib.contextmanager
    def lock(self, limit_seconds: float, run_id: str = "") -> Iterator[Callable[[], None]]:
        with contextlib.ExitStack() as stack:
            try:
                lock = BucketLock(self.storage, describe_self(run_id))
                check_held = stack.enter_context(lock.hold(limit_seconds))
            except OSError as error:
                reason = error.strerror or error
                raise InputError(f"{redact(self.address)}: models cannot be pushed here ({reason}).") from None
            yield check_held

    def names(self) -> list[str]:
        return self.storage.list_names(with_hidden=True)

    def versions(self) -> list[int]:
        return parse_versions(self.names())

    def read(self, name: str, limit_bytes: int) -> bytes | None:
        return self.storage.read(name, limit_bytes)

    def measure(self, version: int) -> Files:
        names = (name for name in find_files(self.storage, str(version)) if name != MANIFEST_FILE)
        return {name: self._measure(f"{version}/{name}") for name in names}

    def state(self) -> Mapping[str, object]:
        return dict.fromkeys((name for name in self.names() if name != LOCK_NAME), True)

    def remove_leftovers(self) -> None:
        for name in self.names():
            number = leftover_number(name)
            if number is not None:
                self.storage.delete(f"{name}/{MODEL_FILE}")  # first, so that a suspended push cannot publish it
                if name.startswith(TRASH_PREFIX) or not self._is_complete(number):
                    self._remove_tree(number)
                self.storage.delete_tree(name)

    def place(
        self,
        version: int,
        sources: Mapping[str, Path],
        manifest: Manifest,
        check: LoadCheck,
        check_held: Callable[[], None],
    ) -> None:
        hidden = f"{TEMPORARY_PREFIX}{version}"
        with tempfile.TemporaryDirectory(prefix="detloom-push-") as scratch:
            check_held()
            try:
                self._mark(hidden)  # from now on the number is in use
                copy_and_check(sources, manifest, Path(scratch), check)
                self._publish(version, Path(scratch), [*manifest.files, MANIFEST_FILE], check_held)
            except BaseException:  # also Ctrl-C
                with contextlib.suppress(OSError):
                    check_held()  # if the lock is lost, leave the removal to its next owner
                    self._remove_tree(version)
                    self.storage.delete_tree(hidden)
                raise
        with contextlib.suppress(OSError):  # the next push removes it
            self.storage.delete_tree(hidden)

    def append_record(self, line: str) -> None:
        before, generation = self.storage.read_generation(RECORD_FILE, MAX_RECORD_BYTES)
        if self.storage.write_generation(RECORD_FILE, _with_line(before, line), generation) is None:
            raise OSError(errno.ESTALE, "the push record was changed by another process", RECORD_FILE)

    def write(self, name: str, content: bytes) -> None:
        self.storage.write(name, content)

    def remove_version(self, version: int) -> None:
        hidden = f"{TRASH_PREFIX}{version}"
        self._mark(hidden)
        self._remove_tree(version)
        self.storage.delete_tree(hidden)

    @contextlib.contextmanager
    def fetch(self, version: int) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="detloom-version-") as scratch:
            copy_folder(self.storage, str(version), Path(scratch), lambda name: name != MANIFEST_FILE)
            yield Path(scratch)

    def _publish(self, version: int, folder: Path, names: Sequence[str], check_held: Callable[[], None]) -> None:
        """Upload the files of a local folder under a hidden name, verify what was stored, and copy it to the version.

        The copies have no source if the next owner of the lock has removed the hidden files.
        """
        hidden = f"{TEMPORARY_PREFIX}{version}"
        for name in names:
            check_held()
            self.storage.upload(folder / name, f"{hidden}/{name}")
            uploaded = measure_files({name: folder / name})
            stored = {name: self._measure(f"{hidden}/{name}")}
            check_same(uploaded, stored, "the stored copy differs from the original", self.address)
        for name in sorted(names, key=lambda name: (name == MODEL_FILE, name == ONNX_FILE)):
            check_held()
            self.storage.copy(f"{hidden}/{name}", f"{version}/{name}")

    def _measure(self, path: str) -> tuple[int, str]:
        """Read a file and return its size and SHA-256."""
        with self.storage.open(path) as file:
            return measure_stream(file)

    def _mark(self, hidden: str) -> None:
        self.storage.write(f"{hidden}/{_OWNER_FILE}", describe_self().encode())

    def _is_complete(self, version: int) -> bool:
        data = self.read(f"{version}/{MANIFEST_FILE}", MAX_MANIFEST_BYTES)
        has_manifest = data is not None and parse_manifest(data) is not None
        return has_manifest and self.storage.exists(f"{version}/{MODEL_FILE}")

    def _remove_tree(self, version: int) -> None:
        """Remove a version: first the file without which it cannot be loaded."""
        for name in (MODEL_FILE, MANIFEST_FILE):
            self.storage.delete(f"{version}/{name}")
        self.storage.delete_tree(str(version))


def _with_line(record: bytes, line: str) -> bytes:
    if len(record) > MAX_RECORD_BYTES:
        raise OSError(errno.EFBIG, "the push record is too large to be rewritten", RECORD_FILE)
    newline = b"" if record[-1:] in (b"\n", b"") else b"\n"
    return record + newline + f"{line}\n".encode()
