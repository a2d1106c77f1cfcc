"""Versions in a folder of a file system: written under another name, made visible by one rename."""

import contextlib
import errno
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
    version_numbers,
)
from detloom.components.pusher.folder_lock import describe_self, hold_folder_lock
from detloom.components.pusher.load_check import LoadCheck
from detloom.components.pusher.manifest import (
    MANIFEST_FILE,
    Files,
    Manifest,
    build_manifest,
    differences,
)
from detloom.components.pusher.push_record import RECORD_FILE
from detloom.schemas.errors import InputError

_LOGGER = logging.getLogger("detloom")


class Folder:
    """A `Destination` on a file system that can rename a folder."""

    requires_manifest = False  # a folder with a number is whole: only a rename makes one

    def __init__(self, path: Path) -> None:
        self.path, self.address = path, str(path)

    @contextlib.contextmanager
    def lock(self, limit_seconds: float, run_id: str = "") -> Iterator[Callable[[], None]]:
        with contextlib.ExitStack() as stack:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                owner = describe_self(run_id)
                check_held = stack.enter_context(hold_folder_lock(self.path / LOCK_NAME, owner, limit_seconds))
            except OSError as error:
                raise InputError(f"{self.address}: models cannot be pushed here ({_reason(error)}).") from None
            yield check_held

    def names(self) -> list[str]:
        try:
            return os.listdir(self.path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise InputError(f"{self.address}: cannot be read ({error.strerror}).") from None

    def versions(self) -> list[int]:
        return [number for number in version_numbers(self.names()) if (self.path / str(number)).is_dir()]

    def read(self, name: str, limit_bytes: int) -> bytes | None:
        try:
            with open(_open_to_read(self.path / name), "rb") as file:
                return file.read(limit_bytes + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise InputError(f"{self.path / name}: cannot be read ({error.strerror or error}).") from None

    def measure(self, version: int) -> Files:
        return build_manifest(self.path / str(version)).files

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
        temporary = self.path / f"{TEMPORARY_PREFIX}{version}"
        check_held()
        temporary.mkdir()  # not mkdtemp: its folders are closed to the server's user
        try:
            for name, source in sources.items():
                target = temporary / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
                _sync(target)
            _write_manifest(temporary / MANIFEST_FILE, manifest)
            self._open_to_readers(temporary)
            for folder in (temporary, *(path for path in temporary.rglob("*") if path.is_dir())):
                _sync(folder)
            _check_same(manifest, temporary, "the copy differs from the original")
            check(temporary)
            check_held()  # before what is missing then is taken for a change
            _check_same(manifest, temporary, "the copy was changed while it was loaded")  # a graph can write files
            check_held()
            os.rename(temporary, self.path / str(version))
        except BaseException:  # also Ctrl-C
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        with contextlib.suppress(OSError):  # it is a version already; at worst a power cut takes it away whole
            _sync(self.path)

    def append_record(self, line: str) -> None:
        path = self.path / RECORD_FILE
        with open(path, "ab+") as file:
            if file.tell() and not _ends_with_newline(path):
                line = f"\n{line}"
            file.write(f"{line}\n".encode())
            file.flush()
            os.fsync(file.fileno())

    def remove_version(self, version: int) -> None:
        trash = self.path / f"{TRASH_PREFIX}{version}"
        os.rename(self.path / str(version), trash)
        self._delete(trash)

    @contextlib.contextmanager
    def fetch(self, version: int) -> Iterator[Path]:
        yield self.path / str(version)

    def _delete(self, path: Path) -> None:
        """What servers do not look at; if it cannot be deleted, a push need not fail."""
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        except OSError as error:
            _LOGGER.warning("%s: could not be deleted (%s); delete it by hand.", path, _reason(error))

    def _open_to_readers(self, temporary: Path) -> None:
        """Who may read the folder of versions may read the version: a server often is another user."""
        allowed = stat.S_IMODE(self.path.stat().st_mode)
        for path in (temporary, *temporary.rglob("*")):
            mode = stat.S_IMODE(path.stat().st_mode)
            wanted = mode | allowed & (0o055 if path.is_dir() else 0o044)
            if wanted != mode:
                path.chmod(wanted)


def _check_same(manifest: Manifest, copy: Path, what: str) -> None:
    wrong = differences(manifest.files, build_manifest(copy).files)
    if wrong:
        raise OSError(errno.EIO, f"{what}: {'; '.join(wrong[:3])}", str(copy))


def _open_to_read(path: Path) -> int:
    """A descriptor. Without waiting: a named pipe would be waited for until somebody writes to it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is no plain file", str(path))
    return descriptor


def _reason(error: OSError) -> str:
    """What is wrong, with which file."""
    return f"{error.strerror}: {error.filename}" if error.strerror and error.filename else str(error)


def _ends_with_newline(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _write_manifest(path: Path, manifest: Manifest) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(manifest.to_text(), encoding="utf-8")
    _sync(path)


def _sync(path: Path) -> None:
    """Make a file's content, or a folder's list of names, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
