"""Local copies of models in an object store."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from detloom.components.pusher.manifest import MANIFEST_FILE
from detloom.components.pusher.versions import complete_versions, open_destination
from detloom.components.storage.local_copy import local_folder
from detloom.components.storage.storage import is_address


@contextlib.contextmanager
def local_model(address: str) -> Iterator[Path]:
    """Yield a local folder as it is, and a temporary copy of a model at an address, without its push manifest.

    Of a folder of versions, the highest complete version is copied. The copy has the name of the model's folder.

    Raises:
        InputError: the address names no file, or the copy does not fit on the disk.
        OSError: the storage does not respond.
    """
    version = max(complete_versions(open_destination(address)), default=None) if is_address(address) else None
    chosen = address if version is None else f"{address.rstrip('/')}/{version}"
    with local_folder(chosen, is_of_model) as folder:
        yield folder


def is_of_model(name: str) -> bool:
    """Return False for a push manifest, which does not belong to another place."""
    return name != MANIFEST_FILE
