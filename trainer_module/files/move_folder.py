"""Move a folder, also where a rename is impossible: between file systems, or on the mount of an object store."""

import errno
import os
import shutil
from pathlib import Path


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
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # leftovers of a killed copy
    shutil.copytree(source, partial, copy_function=shutil.copyfile)
    try:
        os.replace(partial, target)
    except OSError:
        shutil.rmtree(partial)
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
