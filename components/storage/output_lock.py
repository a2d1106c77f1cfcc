"""A lock that allows one process at a time to write an output folder."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from detloom.components.storage.storage import is_address
from detloom.schemas.errors import InputError
from detloom.trainer_module.files.folder_lock import hold_folder_lock


@contextlib.contextmanager
def hold_output(folder: str, lock_file: str, what: str) -> Iterator[Callable[[], None]]:
    """Hold the lock of a local output folder, which is created; an address has no lock.

    The lock file is removed at the end, because the folder may be an artifact.

    Yields a function that raises OSError if somebody removed the lock file: another process may write the folder then.

    Args:
        lock_file: name of the lock file in the folder; a hidden one, because the folder may be read meanwhile.
        what: what the lock allows once at a time, such as "ingestion".

    Raises:
        FolderBusyError: another process writes the folder.
        InputError: the folder cannot be written.
    """
    if is_address(folder):
        yield lambda: None
        return
    path = Path(folder, lock_file)
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            check_held = stack.enter_context(hold_folder_lock(path, what, is_required=False))
        except OSError as error:
            raise InputError(
                f"{folder}: cannot be used as the output ({error.strerror}); choose another one."
            ) from None
        stack.callback(_remove_own, path, check_held)
        yield check_held


def _remove_own(path: Path, check_held: Callable[[], None]) -> None:
    with contextlib.suppress(OSError):
        check_held()
        path.unlink()
