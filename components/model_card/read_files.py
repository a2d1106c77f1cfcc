"""Files that a card is made from: read bounded, and with one sentence for whatever is wrong with them."""

import contextlib
import json
import math
import typing
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from detloom.schemas.errors import InputError
from detloom.schemas.redact import escape

_MAX_BYTES = 2**28  # an evaluation of a million images stays below it


def read_bytes(path: str, what: str, max_bytes: int = _MAX_BYTES) -> bytes:
    """The file's bytes; it may be on any file system that TensorFlow knows.

    Args:
        what: the file is, and where it comes from, for the message.

    Raises:
        InputError: if it is absent, cannot be read or is larger than `max_bytes`.
    """
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            data: bytes = file.read(max_bytes + 1)
    except tf.errors.OpError as error:
        why = "no such file" if isinstance(error, tf.errors.NotFoundError) else "cannot be read"
        raise InputError(f"{escape(path)}: {why}, needed for the model card: {what}.") from None
    if len(data) > max_bytes:
        raise InputError(f"{escape(path)}: got more than {max_bytes} bytes, allowed: {what}, which is smaller.")
    return data


def read_text(path: str, what: str) -> str:
    """As `read_bytes`, of UTF-8."""
    try:
        return read_bytes(path, what).decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{escape(path)}: got bytes that are not UTF-8, allowed: {what}.") from None


def read_json(path: str, what: str) -> Any:
    """As `read_bytes`, of JSON without NaN and infinity."""
    text = read_text(path, what)
    with reading(path, what):
        return json.loads(text, parse_constant=_refuse_constant)


@contextlib.contextmanager
def reading(path: str, what: str) -> Iterator[None]:
    """What the block cannot take from the content of a file is the file's fault: InputError."""
    try:
        yield
    except InputError:
        raise
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        detail = f"{type(error).__name__}: {escape(str(error))[:200]}"
        raise InputError(f"{escape(path)}: is not {what} ({detail}); make it again with this version.") from None


def number(value: Any) -> float:
    """A finite number of a file; TypeError or ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"got {type(value).__name__}, needed: a number")
    if not math.isfinite(value):
        raise ValueError("got a number that is not finite")
    return value


def number_or_none(value: Any) -> float | None:
    return None if value is None else number(value)


def count(value: Any) -> int:
    """A whole number, 0 or more."""
    found = number(value)
    if found < 0 or found != int(found):
        raise ValueError(f"got {found}, needed: a count")
    return int(found)


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"got {type(value).__name__}, needed: text")
    return value


def _refuse_constant(name: str) -> typing.NoReturn:
    raise ValueError(f"got {name}, which is no JSON")
