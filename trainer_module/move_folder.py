"""Moving a folder, also where a rename cannot: to another file system, or on the mount of an object store."""

import errno
import os
import shutil
from pathlib import Path


def move_folder(source: Path, target: Path) -> None:
    """Make `source` be `target`, whole or not at all; what stands at `target` is replaced.

    To another file system it is copied beside the target first, and deleted last: a kill in between leaves a source
    that is whole, or none. The mount of an object store knows no rename of folders (GoogleCloudPlatform/gcsfuse,
    docs/semantics.md, "Missing features"). There the files are copied one by one, and the target is whole when this
    function returns.
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
    """Whether the target's file system can rename folders; if so, the target is there."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a copy that was killed
    shutil.copytree(source, partial, copy_function=shutil.copyfile)
    try:
        os.replace(partial, target)
    except OSError:
        shutil.rmtree(partial)
        return False
    return True


def _remove(folder: Path) -> None:
    """Out of the way by one rename first: nobody shall go on from half of it."""
    doomed = folder.with_name(f".{folder.name}.moved")
    shutil.rmtree(doomed, ignore_errors=True)
    try:
        os.replace(folder, doomed)
    except OSError:
        doomed = folder
    shutil.rmtree(doomed, ignore_errors=True)
