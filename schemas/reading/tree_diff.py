"""Compare two trees of plain values."""

from collections.abc import Iterator
from typing import Any

from detloom.schemas.reading.typed_dict import KeyPath, format_key_path, show_value


def leaves(data: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the leaf values of a tree; a list of scalars is one leaf, and so is an empty mapping."""
    if isinstance(data, dict) and data:
        for key, value in data.items():
            yield from leaves(value, (*path, key))
    elif isinstance(data, list) and any(isinstance(item, dict | list) for item in data):
        for place, value in enumerate(data):
            yield from leaves(value, (*path, place))
    else:
        yield path, data


def diff_trees(one: Any, other: Any) -> list[tuple[str, str, str]]:
    """Return (key, value in one, value in the other) for each difference; "-" marks a missing key."""
    left, right = dict(leaves(one)), dict(leaves(other))

    def show(side: dict[KeyPath, Any], path: KeyPath) -> str:
        return show_value(path, side[path]) if path in side else "-"

    return [
        (format_key_path(path), show(left, path), show(right, path))
        for path in {**left, **right}
        if path not in left or path not in right or left[path] != right[path]
    ]
