"""Text files: read bounded and with one sentence for whatever is wrong with them, written whole or not at all."""

import os
from pathlib import Path

from detloom.schemas.errors import InputError
from detloom.schemas.redact import escape

MAX_BYTES = 1_000_000  # the zoo's largest pipeline.config has 10,000


def read_text_file(path: Path) -> str:
    """The text of a file.

    Raises:
        InputError: with file and line, if it cannot be read, is larger than 1 MB, or is no UTF-8.
    """
    name = escape(str(path))
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError(f"{name}: no such file.") from None
    except IsADirectoryError:
        raise InputError(f"{name}: is a folder, allowed: a file.") from None
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL character
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{name[:200]}: cannot be read ({reason}).") from None
    if len(data) > MAX_BYTES:
        raise InputError(f"{name}:1: got more than {MAX_BYTES} bytes, allowed: a configuration, which is much smaller.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{name}:{line}: got bytes that are not UTF-8, allowed: a text file.") from None


def write_text_file(path: Path, text: str) -> None:
    """Write under another name, then rename: a file of that name is never half written. Its folder must be there.

    It is on the disk before it is renamed; otherwise a machine that loses its power may leave an empty one.
    """
    partial = path.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
