"""Values of untrusted JSON: which are numbers and text, and how they are quoted in a message."""

import reprlib
from typing import Any

_MAX_SHOWN = 60  # characters of input in a message


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
    """Neither empty nor with a NUL or half of a surrogate pair, which JSON can hold but no file name or UTF-8 text."""
    if not isinstance(value, str) or not value or "\0" in value:
        return False
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


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
    """Whether it is a whole number from 0 up."""
    return type(value) is int and value >= 0
