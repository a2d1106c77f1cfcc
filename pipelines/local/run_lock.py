"""A lock that allows one run per workspace: its metadata is a SQLite file, and two runs would train twice.

The operating system holds the lock (flock) and releases it when the process ends in any way; the file remains.
"""

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from detloom.components.pusher.locks import describe_self, format_owner
from detloom.schemas.errors import InputError

LOCK_FILE = ".run.lock"
BUSY_EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h; the units that `detloom timer` writes count it as success
_MAX_OWNER_BYTES = 4096
_LOGGER = logging.getLogger("detloom")


class WorkspaceBusyError(InputError):
    """Another run uses the workspace.

    Attributes:
        exit_code: the exit code of the command line.
    """

    exit_code = BUSY_EXIT_CODE


@contextlib.contextmanager
def hold_workspace(workspace: Path) -> Iterator[None]:
    """Hold the lock of a workspace, which is created if it does not exist.

    Raises:
        WorkspaceBusyError: another run uses it.
        InputError: it cannot be written.
    """
    try:
        workspace.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(workspace / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise InputError(
            f"{workspace}: cannot be used as the workspace ({error.strerror}); choose another one."
        ) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, _MAX_OWNER_BYTES, 0).decode(errors="replace")
            raise WorkspaceBusyError(
                f"{workspace}: another run is in progress ({format_owner(owner)}); nothing was run. Wait until it has "
                "ended, or use another workspace."
            ) from None
        except OSError as error:  # not every network file system supports locks
            _LOGGER.warning("%s: cannot be locked (%s); make sure that no other run uses it.", workspace, error)
        with contextlib.suppress(OSError):  # the text only describes the owner to a process that finds the lock taken
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, describe_self().encode(), 0)
        yield
    finally:
        os.close(descriptor)
