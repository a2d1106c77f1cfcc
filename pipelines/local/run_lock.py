"""A lock that allows one run per workspace: its metadata is a SQLite file, and two runs would train twice."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from detloom.schemas.errors import ExitCode, InputError
from detloom.trainer_module.files.folder_lock import FolderBusyError, hold_folder_lock

LOCK_FILE = ".run.lock"


class WorkspaceBusyError(InputError):
    """Another run uses the workspace."""

    exit_code = ExitCode.BUSY


@contextlib.contextmanager
def hold_workspace(workspace: Path) -> Iterator[Callable[[], None]]:
    """Hold the lock of a workspace, which is created if it does not exist.

    Yields a function that raises WorkspaceBusyError if somebody removed the lock file: another run may have begun then.

    Raises:
        WorkspaceBusyError: another run uses it.
        InputError: it cannot be written.
    """
    with contextlib.ExitStack() as stack:
        try:
            workspace.mkdir(parents=True, exist_ok=True)
            check_held = stack.enter_context(hold_folder_lock(workspace / LOCK_FILE, "run", is_required=False))
        except FolderBusyError as error:
            raise WorkspaceBusyError(str(error)) from None
        except OSError as error:
            raise InputError(
                f"{workspace}: cannot be used as the workspace ({error.strerror}); choose another one."
            ) from None

        def check() -> None:
            try:
                check_held()
            except OSError as error:
                raise WorkspaceBusyError(
                    f"{workspace / LOCK_FILE}: {error.strerror}, so another run may use the workspace; run again when "
                    "no other run is in progress."
                ) from None

        yield check
