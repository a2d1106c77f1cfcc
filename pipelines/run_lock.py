"""One run at a time in a workspace: its metadata are a SQLite file, and two runs would train the same twice.

The system holds the lock (flock) and frees it when its owner ends, whatever the way; the file stays.
"""

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from detloom.components.pusher.folder_lock import describe_self, format_owner
from detloom.schemas.errors import InputError

LOCK_FILE = ".run.lock"
BUSY_EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h; the units that `detloom timer` makes count it as success
_MAX_OWNER_BYTES = 4096
_LOGGER = logging.getLogger("detloom")


class WorkspaceBusyError(InputError):
    """Another run has the workspace.

    Attributes:
        exit_code: that the command line ends with instead of 1.
    """

    exit_code = BUSY_EXIT_CODE


@contextlib.contextmanager
def hold_workspace(workspace: Path) -> Iterator[None]:
    """Keep other runs out of the workspace, which is made where it is missing.

    Raises:
        WorkspaceBusyError: another run is in it.
        InputError: it cannot be written.
    """
    try:
        workspace.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(workspace / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise InputError(
            f"{workspace}: cannot be used as the workspace ({error.strerror}); name another one."
        ) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, _MAX_OWNER_BYTES, 0).decode(errors="replace")
            raise WorkspaceBusyError(
                f"{workspace}: another run is under way there ({format_owner(owner)}); nothing was run. Wait until it "
                "has ended, or use another workspace."
            ) from None
        except OSError as error:  # not every network file system has locks
            _LOGGER.warning("%s: cannot be locked (%s); let no other run use it meanwhile.", workspace, error)
        with contextlib.suppress(OSError):  # the text is only for the one who finds the lock taken
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, describe_self().encode(), 0)
        yield
    finally:
        os.close(descriptor)
