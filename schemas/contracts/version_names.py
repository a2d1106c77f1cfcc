"""Names of the numbered versions of a model, as folders that a model server watches."""

from collections.abc import Iterable

END_OF_VERSIONS = 2**63  # TensorFlow Serving reads a version number as a signed 64-bit integer
_MAX_DIGITS = 19  # of 2**63 - 1


def parse_version(name: str) -> int | None:
    """Return the number of a version; None for other names.

    A version is a decimal number below 2**63 in ASCII digits, without leading zeros.
    """
    if not (name.isascii() and name.isdecimal() and len(name) <= _MAX_DIGITS):
        return None
    number = int(name)
    return number if number < END_OF_VERSIONS and str(number) == name else None


def parse_versions(names: Iterable[str]) -> list[int]:
    """Return the numbers of the names that are versions, ascending."""
    return sorted(number for name in names if (number := parse_version(name)) is not None)
