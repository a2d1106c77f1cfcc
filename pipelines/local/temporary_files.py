"""The folder of a run's temporary files, which is deleted with everything that the nodes leave there."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

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
