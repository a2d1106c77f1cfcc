"""Describe an error of the system, such as a full disk or a missing permission, in one sentence.

Only errors that the operating system reports are described. All others are bugs and keep their traceback.
"""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from detloom.schemas.reading.redact import escape, hide_secrets
from detloom.trainer_module.files.folder_lock import find_user
from detloom.trainer_module.files.operation_names import without_operation_names

_FULL_BYTES = 1 << 20  # a file system with less free space counts as full
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_NOT_ALLOWED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_TOO_MANY_FILES = frozenset({errno.EMFILE, errno.ENFILE})
_BEAM_MARK = "_tagged_with_step"  # apache_beam/runners/common.py sets it on the error that replaces a worker's error
_TENSORFLOW_ERRORS = "tensorflow.python.framework.errors_impl"


def describe_system_error(error: BaseException, arguments: Iterable[str] = ()) -> str | None:
    """Return what failed, where, and what to do next; None if the error is not one of the system.

    Args:
        arguments: command line, whose paths are searched for a full file system: an error in a write names no file.
    """
    for each in _causes(error):
        if isinstance(each, OSError) and each.errno is not None:
            return _describe(each, arguments)
        if type(each).__module__ == _TENSORFLOW_ERRORS:
            return _describe_tensorflow(each, arguments)
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes. The context of an error counts only where Beam has replaced the error."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or (current.__context__ if getattr(current, _BEAM_MARK, False) else None)


def _describe(error: OSError, arguments: Iterable[str]) -> str:
    place = next((str(name) for name in (error.filename, error.filename2) if name), "")
    what = f"{hide_secrets(escape(place))}: {error.strerror}" if place else str(error.strerror)
    if error.errno in _NO_SPACE:
        return _no_space(what, [place, *arguments])
    if "://" in place:
        step = "check the credentials and their permissions" if error.errno in _NOT_ALLOWED else "check the storage"
        return f"{what.rstrip('.')}; {step}, and run the command again."
    if error.errno in _NOT_ALLOWED:
        return f"{what}; choose a place where the user {find_user()} may read and write, and run the command again."
    if error.errno in _TOO_MANY_FILES:
        return f"{what}; raise the limit of open files (ulimit -n), and run the command again."
    return f"{what}; correct this and run the command again."


def _describe_tensorflow(error: BaseException, arguments: Iterable[str]) -> str | None:
    """Describe TensorFlow's translation of the system's error codes (tsl/platform/errors.cc)."""
    name, first_line = type(error).__name__, str(getattr(error, "message", error)).partition("\n")[0]
    first_line = without_operation_names(first_line)
    if name == "PermissionDeniedError":
        return f"{hide_secrets(escape(first_line))}; correct this and run the command again."
    # The error also stands for exhausted memory. A partial file may be deleted by now, so that there is space again.
    texts = [os.strerror(number) for number in _NO_SPACE]
    full = name == "ResourceExhaustedError" and (any(text in first_line for text in texts) or _full_places(arguments))
    return _no_space(hide_secrets(escape(first_line)), arguments) if full else None


def _no_space(what: str, paths: Iterable[str]) -> str:
    full = _full_places(paths)
    where = f" (full: {', '.join(full)})" if full else ""
    return f"{what}{where}; free some space or choose another folder, and run the command again."


def _full_places(paths: Iterable[str]) -> list[str]:
    """Return the paths, among them the folder for temporary files, whose file system is full."""
    found: dict[int, str] = {}
    for path in (*paths, os.getcwd(), tempfile.gettempdir()):
        folder = _existing_parent(path)
        if folder is not None:
            usage = shutil.disk_usage(folder)
            if usage.free < _FULL_BYTES:
                text = f"{folder}, {usage.free >> 10} of {usage.total >> 10} KiB free"
                found.setdefault(os.stat(folder).st_dev, text)
    return list(found.values())


def _existing_parent(text: str) -> Path | None:
    path = Path(text.rpartition("=")[2]) if text and "://" not in text and "\0" not in text else None
    while path is not None and path != path.parent:
        try:
            if path.exists():
                return path
        except OSError:  # the name is too long
            pass
        path = path.parent
    return None
