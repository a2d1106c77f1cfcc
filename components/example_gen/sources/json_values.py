"""Values of untrusted JSON: which are numbers and text, and how they are quoted in a message."""

import reprlib
from typing import Any

_MAX_SHOWN = 60  # characters of input in a message
MAX_TEXT_BYTES = 4096  # of names: what a path may have on Linux (PATH_MAX)


class _ShortRepr(reprlib.Repr):
    """Bounded in time and depth: `repr` of what a parser just managed to nest would overflow the stack."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxlist = self.maxdict = 6
        self.maxstring = self.maxother = self.maxlong = _MAX_SHOWN


_SHORT_REPR = _ShortRepr()


def show(value: Any) -> str:
    """At most 60 characters of its `repr`."""
    return _SHORT_REPR.repr(value)[:_MAX_SHOWN]


def name_type(value: Any) -> str:
    """The JSON type in words; the value itself for numbers and truth values."""
    return {dict: "an object", list: "a list", str: "text", type(None): "nothing"}.get(type(value)) or show(value)


def is_text(value: Any) -> bool:
    """Whether it can be a name: 1 to 4096 bytes of UTF-8 without NUL.

    JSON can hold half of a surrogate pair, which no file name and no UTF-8 text can.
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
    """A float, infinite where the integer is beyond its range; None if it is no number."""
    if type(value) is float:
        return value
    if type(value) is not int:  # which leaves out true and false
        return None
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def is_pixel_count(value: Any) -> bool:
    """Whether it is a whole number from 0 up; some tools write 64.0."""
    return (type(value) is int or (type(value) is float and value.is_integer())) and value >= 0
