"""Temporary local copies of folders in an object store, for code that needs files, such as TensorFlow's loaders."""

import contextlib
import posixpath
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from detloom.components.storage.bucket import BucketStorage
from detloom.components.storage.interface import BLOCK_BYTES, Entry, Storage
from detloom.components.storage.many_files import map_files
from detloom.components.storage.storage import is_address, open_storage
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import redact

_addresses: dict[str, str] = {}  # by the path of the copy


@contextlib.contextmanager
def local_folder(address: str, wanted: Callable[[str], bool] = lambda name: True) -> Iterator[Path]:
    """Yield a local folder as it is, and a temporary copy of one at an address, under the same name.

    Args:
        wanted: says for each file's path in the folder whether it is copied.

    Raises:
        InputError: the address names no file, a name points out of the folder, or the copy does not fit on the disk.
        OSError: the storage does not respond.
    """
    if not is_address(address):
        yield Path(address)
        return
    with tempfile.TemporaryDirectory(prefix="detloom-copy-") as scratch:
        folder = Path(scratch) / (posixpath.basename(address.rstrip("/")) or "copy")
        if not copy_folder(open_storage(address), "", folder, wanted):
            raise InputError(f"{redact(address)}: no such folder, or it has no files; check the address.")
        _addresses[str(folder)] = redact(address.rstrip("/"))
        yield folder


@contextlib.contextmanager
def local_output(address: str) -> Iterator[Path]:
    """Yield a local folder as it is, and a temporary one for an address, to which its files are uploaded at the end.

    Hidden files, files of hidden folders, and links are not uploaded, and after an exception, nothing is.

    Raises:
        OSError: the storage does not take the files.
    """
    if not is_address(address):
        yield Path(address)
        return
    with tempfile.TemporaryDirectory(prefix="detloom-output-") as scratch:
        folder = Path(scratch) / (posixpath.basename(address.rstrip("/")) or "output")
        folder.mkdir()
        _addresses[str(folder)] = redact(address.rstrip("/"))
        yield folder
        storage = open_storage(address)
        assert isinstance(storage, BucketStorage)
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder)
            is_hidden = any(part.startswith(".") for part in name.parts)
            if path.is_file() and not path.is_symlink() and not is_hidden:
                storage.upload(path, name.as_posix())


def with_addresses(text: str) -> str:
    """Return a text for the user that names the addresses instead of the copies made by this process."""
    for path, address in _addresses.items():
        text = text.replace(path, address)
    return text


def copy_folder(storage: Storage, source: str, folder: Path, wanted: Callable[[str], bool] = lambda name: True) -> int:
    """Copy the files below a folder of a storage to a local one, several at a time, and return their number.

    Args:
        wanted: says for each file's path in the folder whether it is copied.

    Raises:
        InputError: a name points out of the folder, or the copy does not fit on the disk.
        OSError: the storage does not respond.
    """
    where = redact(storage.address(source))
    entries = {name: entry for name, entry in find_files(storage, source).items() if wanted(name)}
    folder.mkdir(parents=True, exist_ok=True)
    num_bytes, num_free = sum(entry.size for entry in entries.values()), shutil.disk_usage(folder).free
    if num_bytes > num_free:
        raise InputError(
            f"{where}: its {num_bytes / 1e9:.1f} GB are copied to this machine, but {folder.parent} has "
            f"{num_free / 1e9:.1f} GB left; set TMPDIR to a larger disk."
        )

    def copy(name: str) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with storage.open(entries[name].path) as source, path.open("wb") as target:
            shutil.copyfileobj(source, target, BLOCK_BYTES)

    deque(map_files(storage, copy, entries), maxlen=0)
    return len(entries)


def find_files(storage: Storage, folder: str) -> dict[str, Entry]:
    """Return all files below a folder by their paths in it, hidden ones included.

    Raises:
        InputError: a name that would point out of the folder that it is copied to.
    """
    return {entry.path.removeprefix(f"{folder}/"): entry for entry in storage.walk(folder, with_hidden=True)}
