"""Read text files with a size limit and clear errors; write them atomically."""

from pathlib import Path

from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import escape
from detloom.schemas.reading.replace_when_done import replace_when_done

MAX_BYTES = 1_000_000  # the largest pipeline.config of the detection zoo has 10,000


def read_text_file(path: Path, max_bytes: int = MAX_BYTES) -> str:
    """Return the text of a file.

    Raises:
        InputError: with file and line, if the file cannot be read, is larger than `max_bytes`, or is not UTF-8.
    """
    name = escape(str(path))
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise InputError(f"{name}: no such file.") from None
    except IsADirectoryError:
        raise InputError(f"{name}: is a folder, allowed: a file.") from None
    except (OSError, ValueError) as error:  # ValueError: a file name with a NUL character
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{name[:200]}: cannot be read ({reason}).") from None
    if len(data) > max_bytes:
        raise InputError(f"{name}: is larger than {max_bytes} bytes; is it the right file?")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{name}:{line}: got bytes that are not UTF-8, allowed: a text file.") from None


def write_text_file(path: Path, text: str) -> None:
    """Write a file with `replace_when_done`. The folder must exist. An OSError names `path`."""
    try:
        with replace_when_done(path) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise
