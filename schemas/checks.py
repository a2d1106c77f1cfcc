"""The checks that the configuration's classes share; their message is completed with file and line by `from_dict`."""

from detloom.schemas.errors import FieldError


def check(condition: bool, field: str, got: object, allowed: str, other: str = "") -> None:
    """Raise FieldError, saying what is allowed, unless the condition holds; `other` is a field that it contradicts."""
    if not condition:
        raise FieldError(field, f"got {got}, allowed: {allowed}.", other)


def check_fields(owner: object, allowed: str, *fields: str) -> None:
    """Check numeric fields of a dataclass against one of a few ranges, named as the message will say them."""
    for field in fields:
        value = getattr(owner, field)
        check(value is None or _RANGES[allowed](value), field, value, allowed)


_RANGES = {
    "above 0": lambda value: value > 0,
    "0 or more": lambda value: value >= 0,
    "1 or more": lambda value: value >= 1,
    "0 to 1": lambda value: 0 <= value <= 1,
    "0 up to 1": lambda value: 0 <= value < 1,
    "above 0, at most 1": lambda value: 0 < value <= 1,
    "between 0 and 1": lambda value: 0 < value < 1,
}
