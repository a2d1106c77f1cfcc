"""Replace a file or folder only when its new content is complete; move folders between file systems."""

import errno
import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replace_when_done(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; when the block ends, sync what was written there and rename it to `path`.

    The block writes a file or a folder. `path` stays as it was if the block raises or writes nothing. Each process has
    a temporary path of its own, so that two of them cannot publish each other's unfinished content; what killed
    processes left is deleted.
    """
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        if not _is_running(left.name.split(".")[-2]):
            _delete(left)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    _delete(partial)
    try:
        yield partial
        for written in (partial, *partial.rglob("*")) if partial.exists() else ():
            sync(written)
        if partial.is_dir():
            move_folder(partial, path)
        elif partial.exists():
            os.replace(partial, path)
    finally:
        _delete(partial)


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on disk and survive a power failure."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP)):  # some network file systems
            raise
    finally:
        os.close(opened)


def move_folder(source: Path, target: Path) -> None:
    """Move `source` to `target` atomically; an existing `target` is replaced.

    Between file systems, the folder is first copied beside the target and deleted last, so that a kill leaves the
    source complete or absent. The mount of an object store cannot rename folders (GoogleCloudPlatform/gcsfuse,
    docs/semantics.md, "Missing features"). There the files are copied one by one, and the target is complete only when
    this function returns.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_dir() and any(target.iterdir()):
        shutil.rmtree(target)
    try:
        os.replace(source, target)
        return
    except OSError as error:
        is_elsewhere = error.errno == errno.EXDEV
    if not (is_elsewhere and _copy_whole(source, target)):
        shutil.copytree(source, target, copy_function=shutil.copyfile, dirs_exist_ok=True)
    _remove(source)


def _copy_whole(source: Path, target: Path) -> bool:
    """Copy and rename; return False if the target's file system cannot rename folders."""
    copy = target.with_name(f".{target.name}.copy")
    _delete(copy)  # leftovers of a killed copy
    shutil.copytree(source, copy, copy_function=shutil.copyfile)
    try:
        os.replace(copy, target)
    except OSError:
        shutil.rmtree(copy)
        return False
    return True


def _remove(folder: Path) -> None:
    """Delete a folder; first rename it, so that no process resumes from a half-deleted one."""
    doomed = folder.with_name(f".{folder.name}.moved")
    shutil.rmtree(doomed, ignore_errors=True)
    try:
        os.replace(folder, doomed)
    except OSError:
        doomed = folder
    shutil.rmtree(doomed, ignore_errors=True)


def _is_running(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except PermissionError:
        return True
    except (ValueError, OverflowError, ProcessLookupError):
        return False
    return True


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
