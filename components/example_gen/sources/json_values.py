"""Check values of untrusted JSON (numbers, text), and quote them in messages."""

import json
import reprlib
from typing import Any

from detloom.components.example_gen.data_folder import unreadable

_MAX_SHOWN = 60  # characters of input in a message
MAX_TEXT_BYTES = 4096  # for names: the longest path on Linux (PATH_MAX)


class _ShortRepr(reprlib.Repr):
    """A `repr` with bounded time and depth: the built-in one could overflow the stack on a deeply nested value."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxlist = self.maxdict = 6
        self.maxstring = self.maxother = self.maxlong = _MAX_SHOWN


_SHORT_REPR = _ShortRepr()


def parse_json(text: str) -> Any:
    """Return the value of a JSON text; raise a SourceError for anything else."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        problem = f"line {error.lineno}: not readable as JSON ({error.msg})"
    except RecursionError:
        problem = "it is nested too deeply"
    except ValueError:  # from int(), which reads at most 4,300 digits
        problem = "it contains a number with too many digits"
    raise unreadable(problem)


def show(value: Any) -> str:
    """Return at most 60 characters of the value's `repr`."""
    return _SHORT_REPR.repr(value)[:_MAX_SHOWN]


def name_type(value: Any) -> str:
    """Name the JSON type; for numbers and booleans, return the value."""
    return {dict: "an object", list: "a list", str: "text", type(None): "nothing"}.get(type(value)) or show(value)


def is_text(value: Any) -> bool:
    """Return whether the value can be a name: 1 to 4096 bytes of UTF-8 without NUL.

    JSON can contain lone surrogates, which neither file names nor UTF-8 text can.
    """
    if not isinstance(value, str) or not value or len(value) > MAX_TEXT_BYTES or "\0" in value:
        return False
    if value.isascii():
        return True
    try:
        return len(value.encode()) <= MAX_TEXT_BYTES
    except UnicodeEncodeError:
        return False


def to_number(value: Any) -> float | None:
    """Return a float, which is infinite for an integer out of range; None if the value is not a number."""
    if type(value) is float:
        return value
    if type(value) is not int:  # excludes true and false
        return None
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def is_pixel_count(value: Any) -> bool:
    """Return whether the value is a whole number >= 0; some tools write 64.0."""
    return (type(value) is int or (type(value) is float and value.is_integer())) and value >= 0
