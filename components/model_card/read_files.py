"""Read the source files of a card, and report any problem as one InputError with the path."""

import contextlib
import json
import typing
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import escape


@contextlib.contextmanager
def reading_json(path: str, what: str) -> Iterator[Any]:
    """Yield the content of a JSON file, without NaN and infinity, on any file system of TensorFlow.

    Args:
        what: description of the expected file, for the error message.

    Raises:
        InputError: if the file is missing or cannot be read, or if the block cannot use its content.
    """
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            data: bytes = file.read()
    except tf.errors.OpError as error:
        reason = "no such file" if isinstance(error, tf.errors.NotFoundError) else "cannot be read"
        raise InputError(f"{escape(path)}: {reason}, needed for the model card: {what}.") from None
    try:
        yield json.loads(data, parse_constant=_reject_constant)
    except InputError:
        raise
    except (ValueError, LookupError, ArithmeticError, TypeError, AttributeError, RecursionError) as error:
        detail = f"{type(error).__name__}: {escape(str(error))[:200]}"
        raise InputError(f"{escape(path)}: not {what} ({detail}); create it again with this version.") from None


def _reject_constant(name: str) -> typing.NoReturn:
    raise ValueError(f"got {name}, which is not JSON")
