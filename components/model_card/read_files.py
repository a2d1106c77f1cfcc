"""Read the source files of a card with a size limit, and report any problem as one InputError with the path."""

import contextlib
import json
import math
import typing
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import escape

_MAX_BYTES = 2**28  # enough for the evaluation of a million images


def read_bytes(path: str, what: str, max_bytes: int = _MAX_BYTES) -> bytes:
    """Read a file; any file system of TensorFlow is supported.

    Args:
        what: description of the expected file, for the error message.

    Raises:
        InputError: if the file is missing, cannot be read or is larger than `max_bytes`.
    """
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            data: bytes = file.read(max_bytes + 1)
    except tf.errors.OpError as error:
        reason = "no such file" if isinstance(error, tf.errors.NotFoundError) else "cannot be read"
        raise InputError(f"{escape(path)}: {reason}, needed for the model card: {what}.") from None
    if len(data) > max_bytes:
        raise InputError(f"{escape(path)}: larger than {max_bytes} bytes, expected: {what}.")
    return data


def read_text(path: str, what: str) -> str:
    """Read a UTF-8 file; see `read_bytes`."""
    try:
        return read_bytes(path, what).decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{escape(path)}: not UTF-8, expected: {what}.") from None


def read_json(path: str, what: str) -> Any:
    """Read a JSON file without NaN and infinity; see `read_bytes`."""
    text = read_text(path, what)
    with reading(path, what):
        return json.loads(text, parse_constant=_reject_constant)


@contextlib.contextmanager
def reading(path: str, what: str) -> Iterator[None]:
    """Convert the errors of a block that parses the content of a file to an InputError with its path."""
    try:
        yield
    except InputError:
        raise
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        detail = f"{type(error).__name__}: {escape(str(error))[:200]}"
        raise InputError(f"{escape(path)}: not {what} ({detail}); create it again with this version.") from None


def number(value: Any) -> float:
    """Return a finite number; raise TypeError or ValueError for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"got {type(value).__name__}, needed: a number")
    if not math.isfinite(value):
        raise ValueError("got a number that is not finite")
    return value


def number_or_none(value: Any) -> float | None:
    return None if value is None else number(value)


def count(value: Any) -> int:
    """Return a whole number of 0 or more; raise TypeError or ValueError for any other value."""
    found = number(value)
    if found < 0 or found != int(found):
        raise ValueError(f"got {found}, needed: a count")
    return int(found)


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"got {type(value).__name__}, needed: text")
    return value


def _reject_constant(name: str) -> typing.NoReturn:
    raise ValueError(f"got {name}, which is not JSON")
