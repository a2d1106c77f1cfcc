"""Supervise a run on this machine: the lock of its workspace, its temporary files, the time limits of its nodes."""

import contextlib
import fcntl
import logging
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from detloom.schemas.errors import InputError
from detloom.schemas.reading.format_duration import format_duration
from detloom.trainer_module.files.folder_lock import FolderBusyError, hold_folder_lock

_LOGGER = logging.getLogger("detloom")

# --- lock of the workspace --------------------------------------------------------------------------------------------

LOCK_FILE = ".run.lock"


@contextlib.contextmanager
def hold_workspace(workspace: Path) -> Iterator[Callable[[], None]]:
    """Hold the lock of a workspace, which is created if it does not exist.

    Yields a function that raises FolderBusyError if somebody removed the lock file: another run may have begun then.

    Raises:
        FolderBusyError: another run uses it.
        InputError: it cannot be written.
    """
    with contextlib.ExitStack() as stack:
        try:
            workspace.mkdir(parents=True, exist_ok=True)
            check_held = stack.enter_context(hold_folder_lock(workspace / LOCK_FILE, "run", is_required=False))
        except OSError as error:
            raise InputError(
                f"{workspace}: cannot be used as the workspace ({error.strerror}); choose another one."
            ) from None

        def check() -> None:
            try:
                check_held()
            except OSError as error:
                raise FolderBusyError(
                    f"{workspace / LOCK_FILE}: {error.strerror}, so another run may use the workspace; run again when "
                    "no other run is in progress."
                ) from None

        yield check


# --- temporary files --------------------------------------------------------------------------------------------------

_PREFIX = "detloom-run-"
_MIN_AGE_SECONDS = 3600.0  # of a folder without an owner: a younger one may not be locked yet
_VARIABLE = "TMPDIR"

_folder: str | None = None  # of the current run


@contextlib.contextmanager
def own_temporary_folder() -> Iterator[None]:
    """Let this process and its children put temporary files into a new folder, which is deleted at the end.

    TFX leaves a copy of itself (49 MB) for each node that has options of Apache Beam. Folders of processes that were
    killed are deleted first.
    """
    global _folder
    before = tempfile.tempdir, os.environ.get(_VARIABLE)
    _delete_left_folders(Path(tempfile.gettempdir()))
    _folder = tempfile.mkdtemp(prefix=_PREFIX)
    lock = os.open(_folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    tempfile.tempdir = os.environ[_VARIABLE] = _folder
    try:
        yield
    finally:
        tempfile.tempdir, variable = before
        if variable is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = variable
        delete_temporary_folder()
        os.close(lock)


def delete_temporary_folder() -> None:
    """Delete the folder of the current run, if there is one; also for a process that ends at once."""
    global _folder
    if _folder is not None:
        shutil.rmtree(_folder, ignore_errors=True)
        _folder = None


def _delete_left_folders(parent: Path) -> None:
    """Delete the folders whose processes do not exist any more: their locks ended with them."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.lstat().st_mtime < _MIN_AGE_SECONDS:
                continue
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


# --- time limits ------------------------------------------------------------------------------------------------------

_AGAIN_SECONDS = 15.0
_GRACE_SECONDS = 120.0


class NodeTimeoutError(Exception):
    """A node exceeded its time limit.

    Attributes:
        node: its id.
        seconds: the limit.
    """

    def __init__(self, node: str, seconds: float) -> None:
        super().__init__(f"it took longer than its time limit of {format_duration(seconds)}")
        self.node, self.seconds = node, seconds


class TimeLimits:
    """A context manager for the main thread that limits the time of one node after the other.

    A thread waits for the limit and then sends SIGALRM to this process, whose handler raises an exception in the main
    thread. It does so repeatedly until the node ends, because an exception can get lost (in a destructor, in an
    `except Exception`). A call that never returns to Python sees no exception; the process then ends after a grace
    period.

    Attributes:
        exceeded: the error of the current or last node; None if it is within its limit.
    """

    def __init__(
        self,
        limit_of: Callable[[str], float | None],
        on_stuck: Callable[[NodeTimeoutError], None],
        *,
        again_seconds: float = _AGAIN_SECONDS,
        grace_seconds: float = _GRACE_SECONDS,
    ) -> None:
        """Store the limits.

        Args:
            limit_of: returns a node's limit in seconds.
            on_stuck: called in the watching thread if a node still runs `grace_seconds` after its limit; must end the
                process.
        """
        self.exceeded: NodeTimeoutError | None = None
        self._limit_of, self._on_stuck = limit_of, on_stuck
        self._again, self._grace = again_seconds, grace_seconds
        self._finished, self._was_sent = threading.Event(), False
        self._before: Any = None
        # Python allows signal handlers only there
        self._can_raise = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> "TimeLimits":
        if self._can_raise:
            self._before = signal.signal(signal.SIGALRM, self._on_alarm)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.finish()
        if self._can_raise:
            signal.signal(signal.SIGALRM, self._before)

    def start(self, node: str) -> None:
        """Start the time limit of a node and end that of the previous node."""
        self.finish()
        self.exceeded, self._finished = None, threading.Event()
        seconds = self._limit_of(node)
        if seconds is None:
            return
        if not self._can_raise:
            _LOGGER.warning("%s: its time limit is ignored, because it runs outside the main thread.", node)
            return
        watch = threading.Thread(
            target=self._watch, args=(node, seconds, self._finished), name=f"time limit of {node}", daemon=True
        )
        watch.start()

    def finish(self) -> None:
        """End the time limit of the current node."""
        self._finished.set()

    def _watch(self, node: str, seconds: float, finished: threading.Event) -> None:
        if finished.wait(seconds):
            return
        self.exceeded = NodeTimeoutError(node, seconds)
        waited = 0.0
        while waited < self._grace:
            self._was_sent = True
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
            if finished.wait(min(self._again, self._grace - waited)):
                return
            waited += self._again
        self._on_stuck(self.exceeded)

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        is_ours, self._was_sent = self._was_sent, False
        if is_ours and self.exceeded is not None and not self._finished.is_set():
            raise self.exceeded
        if not is_ours and callable(self._before):
            self._before(number, frame)
