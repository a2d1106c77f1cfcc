"""Exceptions for mistakes that the user can fix, the checks that raise them, and the exit codes of the commands."""

import enum
import functools
import typing
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Annotated, TypeAlias

# Types of fields with the range of their value; `Ranged` checks it.
Share: TypeAlias = Annotated[float, "0 to 1"]
Positive: TypeAlias = Annotated[float, "above 0"]
NotNegative: TypeAlias = Annotated[float, "0 or more"]
PositiveInt: TypeAlias = Annotated[int, "1 or more"]
NotNegativeInt: TypeAlias = Annotated[int, "0 or more"]


class ExitCode(enum.IntEnum):
    """Exit codes of the command line; `pipelines/command_line/exit_codes.py` has their meanings for single commands."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    BUSY = 75  # EX_TEMPFAIL of sysexits.h
    INTERRUPTED = 130  # 128 + SIGINT, as shells report it
    TERMINATED = 143  # 128 + SIGTERM


class InputError(ValueError):
    """A mistake in the user's input: a file, a setting or a data set.

    The message is one complete sentence: what is wrong, where (file, line, record key), what was found, what is
    allowed, and the next step. Commands print it without a traceback. Any other exception is a bug in detloom and
    keeps its traceback.

    Attributes:
        exit_code: of a command that ends with this error.
    """

    exit_code: int = ExitCode.FAILED


class FieldError(InputError):
    """A value that its dataclass rejects.

    Attributes:
        field: name of the field, with dots if the field is nested; `message` does not repeat it.
        other: name of the field that the value contradicts, or empty.
    """

    def __init__(self, field: str, message: str, other: str = "") -> None:
        super().__init__(f"{field}: {message}")
        self.field, self.message, self.other = field, message, other


def list_first(values: Iterable[object], most: int = 10) -> str:
    """Return the first values for a message, and the number of further ones."""
    texts = list(map(str, values))
    further = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + further


def check(condition: bool, field: str, got: object, allowed: str, other: str = "") -> None:
    """Raise FieldError unless the condition holds; `other` is the field that the value contradicts, if any."""
    if not condition:
        got = list(got) if isinstance(got, tuple) else got  # as the user writes it
        end = "" if allowed.endswith("?") else "."  # a hint such as "Did you mean 'AP'?"
        raise FieldError(field, f"got {got}, allowed: {allowed}{end}", other)


def passes(checker: Callable[..., object], *arguments: object) -> bool:
    """Return False if a check raises InputError."""
    try:
        checker(*arguments)
    except InputError:
        return False
    return True


def check_not_empty(owner: object, *fields: str) -> None:
    """Raise FieldError for an empty list, or a text that is empty or blank."""
    for field in fields:
        value = getattr(owner, field)
        if not (value.strip() if isinstance(value, str) else value):
            raise FieldError(field, "must not be empty.")


def check_unique(field: str, values: Iterable[object]) -> None:
    """Raise FieldError if a value occurs twice."""
    twice = [value for value, count in Counter(values).items() if count > 1]
    if twice:
        raise FieldError(field, f"must not contain duplicates: {twice[0]!r} appears twice.")


def check_fields(owner: object, allowed: str, *fields: str) -> None:
    """Check numeric fields of a dataclass against a range: one of `_RANGES`, or "LOW to HIGH"; None passes."""
    for field in fields:
        value = getattr(owner, field)
        check(value is None or _is_in(value, allowed), field, value, allowed)


class Ranged:
    """Base of a dataclass: raises FieldError for a value outside of the range in the `Annotated` type of its field."""

    def __post_init__(self) -> None:
        cls: type = type(self)
        for field, (allowed, is_optional) in _ranges_of(cls).items():
            value = getattr(self, field)
            check(is_optional if value is None else _is_in(value, allowed), field, value, allowed)


@functools.cache
def _ranges_of(cls: type) -> dict[str, tuple[str, bool]]:
    """Return the range of each field that has one, and whether the field may be None."""
    ranges = {}
    for field, hint in typing.get_type_hints(cls, include_extras=True).items():
        is_optional = typing.get_args(hint)[1:] == (type(None),)
        number = typing.get_args(hint)[0] if is_optional else hint
        if hasattr(number, "__metadata__"):
            ranges[field] = (number.__metadata__[0], is_optional)
        elif "Annotated" in repr(hint):
            raise TypeError(f"{cls.__name__}.{field}: got {hint}, allowed: a range of a number or of `number | None`")
    return ranges


def _is_in(value: float, allowed: str) -> bool:
    if allowed in _RANGES:
        return _RANGES[allowed](value)
    low, high = allowed.split(" to ")
    return float(low) <= value <= float(high)


_RANGES: dict[str, Callable[[float], bool]] = {
    "above 0": lambda value: value > 0,
    "0 or more": lambda value: value >= 0,
    "1 or more": lambda value: value >= 1,
    "0 up to 1": lambda value: 0 <= value < 1,
    "above 0, at most 1": lambda value: 0 < value <= 1,
    "above 0, at most 1000000": lambda value: 0 < value <= 1_000_000,
    "between 0 and 1": lambda value: 0 < value < 1,
}
