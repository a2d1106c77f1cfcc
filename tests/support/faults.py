"""Provoke faults: a full or read-only disk, a jumping clock, a killed process; a pytest plugin with fixtures."""

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

_DISK_BYTES = 32 << 20
_BLOCK_BYTES = 4096
_BALLAST = ".ballast"
_JUMPS_SECONDS = (0.0, -86_400.0, 7200.0, -3600.0, 86_400.0)
_WATCHED = ("open", "os.", "shutil.", "fcntl.", "pathlib.")
_NOT_KILLED = 7


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


def kill_at_every_step(folder: Path, act: Callable[[], object]) -> Iterator[int]:
    """Run `act` in forked processes, of which the n-th is killed before its n-th file operation below `folder`.

    Yields n after each kill, and ends when `act` has ended before its n-th operation. `act` must not call TensorFlow,
    whose threads a forked process does not have.
    """
    for stop_at in itertools.count(1):
        child = os.fork()
        if child == 0:
            _run_until(folder, act, stop_at)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == _NOT_KILLED:
            return
        assert code == -signal.SIGKILL, f"the process ended with {code} before operation {stop_at}"
        yield stop_at


def _run_until(folder: Path, act: Callable[[], object], stop_at: int) -> None:
    """Run `act` in this forked process, and end the process."""
    count = itertools.count(1)

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        is_watched = event.startswith(_WATCHED) and any(str(folder) in str(argument) for argument in arguments)
        if is_watched and next(count) == stop_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    try:
        act()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(_NOT_KILLED)  # without the handlers of the parent
