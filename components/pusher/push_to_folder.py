"""Versions in a local folder: written under another name and published by one rename."""

import contextlib
import logging
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from detloom.components.pusher.destination import (
    LOCK_NAME,
    TEMPORARY_PREFIX,
    TRASH_PREFIX,
    leftover_number,
)
from detloom.components.pusher.load_check import LoadCheck
from detloom.components.pusher.manifest import (
    RECORD_FILE,
    Files,
    Manifest,
    build_manifest,
    copy_and_check,
)
from detloom.components.storage.storage import LocalStorage
from detloom.schemas.contracts.version_names import parse_versions
from detloom.schemas.errors import InputError
from detloom.schemas.reading.replace_when_done import replace_when_done
from detloom.trainer_module.files.folder_lock import describe_self, hold_folder_lock

_LOGGER = logging.getLogger("detloom")


class PushFolder:
    """A `Destination` on a file system with atomic rename."""

    requires_manifest = False  # a folder with a number is complete, because only a rename creates it

    def __init__(self, path: Path) -> None:
        self.path, self.address, self._storage = path, str(path), LocalStorage(path)

    @contextlib.contextmanager
    def lock(self, limit_seconds: float, run_id: str = "") -> Iterator[Callable[[], None]]:
        with contextlib.ExitStack() as stack:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                lock = hold_folder_lock(
                    self.path / LOCK_NAME, "push", owner=describe_self(run_id), limit_seconds=limit_seconds
                )
                check_held = stack.enter_context(lock)
            except OSError as error:
                raise InputError(f"{self.address}: models cannot be pushed here ({_reason(error)}).") from None
            if (self.path / RECORD_FILE).is_symlink():
                raise InputError(f"{self.path / RECORD_FILE}: is a link, which a push would write to; remove it.")
            yield check_held

    def names(self) -> list[str]:
        try:
            return self._storage.list_names(with_hidden=True)
        except OSError as error:
            raise InputError(f"{self.address}: cannot be read ({error.strerror}).") from None

    def versions(self) -> list[int]:
        return [number for number in parse_versions(self.names()) if (self.path / str(number)).is_dir()]

    def read(self, name: str, limit_bytes: int) -> bytes | None:
        try:
            return self._storage.read(name, limit_bytes)
        except NotADirectoryError:
            return None
        except OSError as error:
            raise InputError(f"{self.path / name}: cannot be read ({error.strerror or error}).") from None

    def measure(self, version: int) -> Files:
        return build_manifest(self.path / str(version)).files

    def state(self) -> Mapping[str, object]:
        versions = [str(version) for version in self.versions()]
        inside = (path for version in versions for path in (self.path / version).rglob("*"))
        paths = (*(self.path / name for name in self.names() if name != LOCK_NAME), *inside)
        state = {}
        for path in paths:
            status = path.lstat()
            # A folder beside the versions counts by its name, because training records may be written into it.
            content = () if stat.S_ISDIR(status.st_mode) else (status.st_size, status.st_mtime_ns)
            state[path.relative_to(self.path).as_posix()] = (stat.S_IFMT(status.st_mode), *content)
        return state

    def remove_leftovers(self) -> None:
        for name in self.names():
            if leftover_number(name) is not None:
                self._delete(self.path / name)

    def place(
        self,
        version: int,
        sources: Mapping[str, Path],
        manifest: Manifest,
        check: LoadCheck,
        check_held: Callable[[], None],
    ) -> None:
        def check_copy(folder: Path) -> None:
            check(folder)
            check_held()  # a new owner of the lock removes this copy, which would look like a change by the graph

        temporary = self.path / f"{TEMPORARY_PREFIX}{version}"
        check_held()
        temporary.mkdir()  # mkdtemp's folders cannot be read by the user of the model server
        try:
            copy_and_check(sources, manifest, temporary, check_copy)
            self._open_to_readers(temporary)
            for path in (temporary, *temporary.rglob("*")):
                self._storage.sync(path.relative_to(self.path).as_posix())
            check_held()
            self._storage.rename_folder(temporary.name, str(version))
        except BaseException:  # also Ctrl-C
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        with contextlib.suppress(OSError):  # the version is published; a power failure could only remove all of it
            self._storage.sync()

    def append_record(self, line: str) -> None:
        newline = "" if _ends_with_newline(self.path / RECORD_FILE) else "\n"
        self._storage.append(RECORD_FILE, f"{newline}{line}\n".encode())

    def write(self, name: str, content: bytes) -> None:
        with replace_when_done(self.path / name) as partial:
            partial.write_bytes(content)
            self._open_to_readers(partial)

    def remove_version(self, version: int) -> None:
        trash = f"{TRASH_PREFIX}{version}"
        self._storage.rename_folder(str(version), trash)
        self._delete(self.path / trash)

    @contextlib.contextmanager
    def fetch(self, version: int) -> Iterator[Path]:
        yield self.path / str(version)

    def _delete(self, path: Path) -> None:
        """Delete something that servers ignore; log a warning if that fails."""
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        except OSError as error:
            _LOGGER.warning("%s: could not be deleted (%s); delete it by hand.", path, _reason(error))

    def _open_to_readers(self, temporary: Path) -> None:
        """Let everyone read a version or a file who may read the push folder: a server often runs as another user."""
        allowed = stat.S_IMODE(self.path.stat().st_mode)
        for path in (temporary, *temporary.rglob("*")):
            mode = stat.S_IMODE(path.stat().st_mode)
            wanted = mode | allowed & (0o055 if path.is_dir() else 0o044)
            if wanted != mode:
                path.chmod(wanted)


def _reason(error: OSError) -> str:
    """Return the error with its file name."""
    return f"{error.strerror}: {error.filename}" if error.strerror and error.filename else str(error)


def _ends_with_newline(path: Path) -> bool:
    """Return True also for a missing or empty file."""
    if not path.exists() or not path.stat().st_size:
        return True
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
