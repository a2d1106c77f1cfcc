"""Provoke faults: a full or read-only disk, a jumping clock, a stopped process; a pytest plugin with fixtures."""

import contextlib
import errno
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

_DISK_BYTES = 32 << 20
_BLOCK_BYTES = 4096
_BALLAST = ".ballast"
_JUMPS_SECONDS = (0.0, -86_400.0, 7200.0, -3600.0, 86_400.0)
_WATCHED = ("open", "os.", "shutil.", "fcntl.", "pathlib.")
_REMOVES = ("os.remove", "os.rmdir", "shutil.rmtree", "os.truncate")
_NOT_STOPPED = 7
Fault = Literal["kill", "error", "interrupt", "full", "read_only"]


class Disk:
    """A small file system in memory.

    Attributes:
        folder: where it is mounted.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self, free_bytes: int = 0) -> None:
        """Leave only this many bytes free, rounded down to blocks."""
        self.empty()
        num_blocks = shutil.disk_usage(self.folder).free // _BLOCK_BYTES - free_bytes // _BLOCK_BYTES
        with (self.folder / _BALLAST).open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, num_blocks * _BLOCK_BYTES)

    def empty(self) -> None:
        """Free what `fill` has taken."""
        (self.folder / _BALLAST).unlink(missing_ok=True)

    def make_read_only(self) -> None:
        subprocess.run(["mount", "-o", "remount,ro", self.folder], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Mount a file system of 32 MiB; skip the test without the right to do so."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", folder]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs root, to mount a file system")
    yield Disk(folder)
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def jumping_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Move the system clock at each look, by an hour to a day, back and forward; the monotonic clock is unchanged."""
    jumps, true_time = itertools.cycle(_JUMPS_SECONDS), time.time
    monkeypatch.setattr(time, "time", lambda: true_time() + next(jumps))
    monkeypatch.setattr(time, "time_ns", lambda: int(time.time() * 1e9))


def stop_at_every_step(folder: Path, act: Callable[[], object], fault: Fault = "kill", every: int = 1) -> Iterator[int]:
    """Run `act` in forked processes; the one of number n meets a fault at its n-th file operation below `folder`.

    "kill" ends the process, "error" is an error of the disk, "interrupt" is Ctrl-C; "full" and "read_only" refuse this
    and all later operations that write. Yields n after each process, for each `every`-th n, and ends when `act` has
    ended before its n-th operation. `act` must not call TensorFlow, whose threads a forked process does not have.
    """
    for stop_at in itertools.count(1, every):
        child = os.fork()
        if child == 0:
            _run_until(folder, act, fault, stop_at)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == _NOT_STOPPED:
            return
        expected = -signal.SIGKILL if fault == "kill" else 0
        assert code == expected, f"the process ended with {code} at operation {stop_at}"
        yield stop_at


def _run_until(folder: Path, act: Callable[[], object], fault: Fault, stop_at: int) -> None:
    """Run `act` in this forked process, and end the process."""
    count = 0

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        if not event.startswith(_WATCHED) or not any(str(folder) in str(argument) for argument in arguments):
            return
        count += 1
        if count == stop_at and fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if count == stop_at and fault == "interrupt":
            raise KeyboardInterrupt
        if count == stop_at and fault == "error":
            raise OSError(errno.EIO, "i/o error", event)
        if count >= stop_at and fault == "full" and _writes(event, arguments) and event not in _REMOVES:
            raise OSError(errno.ENOSPC, "no space left", event)
        if count >= stop_at and fault == "read_only" and _writes(event, arguments):
            raise OSError(errno.EROFS, "read-only", event)

    sys.addaudithook(watch)
    try:
        with contextlib.suppress(*() if fault == "kill" else (OSError, ValueError, KeyboardInterrupt)):
            act()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(_NOT_STOPPED if count < stop_at else 0)  # without the handlers of the parent


def _writes(event: str, arguments: tuple[object, ...]) -> bool:
    if event == "open":
        return isinstance(arguments[2], int) and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    return event in (*_REMOVES, "os.mkdir", "os.rename", "os.fsync", "shutil.copyfile")


def read_visible(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder by relative path, without hidden ones, such as unfinished files."""
    names = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    is_hidden = {name: any(part.startswith(".") for part in name.parts) for name in names}
    return {str(name): path.read_bytes() for name, path in names.items() if not is_hidden[name]}
