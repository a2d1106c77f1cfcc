"""Files of the package, as compiled jobs name them: package://MODULE/FILE?sha256=HEX.

A job is compiled on one machine and runs on others, where the package may lie elsewhere; and a cache sees the text of a
parameter alone, so the text changes with the file.
"""

import hashlib
import importlib
import re
from pathlib import Path

from detloom.schemas.errors import InputError

SCHEME = "package://"
_ADDRESS = re.compile(
    r"package://(detloom(?:\.[a-z_][a-z0-9_]*)+)/([A-Za-z0-9_][A-Za-z0-9._-]*)\?sha256=([0-9a-f]{16})"
)


def file_of(address: str) -> Path:
    """The installed file.

    Raises:
        InputError: if it is missing, or its content is not what the job was compiled with.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise InputError(f"{address}: allowed: package://MODULE/FILE?sha256=HEX with a module of detloom.")
    module, name, expected = match.groups()
    try:
        folders = [Path(folder) for folder in importlib.import_module(module).__path__]
    except (ImportError, AttributeError):
        folders = []
    file = next((folder / name for folder in folders if (folder / name).is_file()), None)
    if file is None:
        raise InputError(
            f"{address}: no such file in this image; build it again from the version that compiled the job."
        )
    found = hashlib.sha256(file.read_bytes()).hexdigest()[: len(expected)]
    if found != expected:
        raise InputError(
            f"{address}: this image holds another file ({found}); build it again, or compile with the version in it."
        )
    return file
