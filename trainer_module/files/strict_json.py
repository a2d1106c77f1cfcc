"""JSON without NaN and infinity, which strict readers reject: null replaces them."""

import json
import math
from collections.abc import Mapping
from typing import Any


def to_strict_json(value: Any, indent: int | None = None) -> str:
    """Format plain values of any depth; objects that are not JSON values become strings."""
    return json.dumps(_strict(value), ensure_ascii=False, allow_nan=False, default=str, indent=indent)


def read_number(value: float | None) -> float:
    """Return the number, or NaN for None.

    Raises:
        TypeError, ValueError: if it is not a number.
    """
    return math.nan if value is None else float(value)


def _strict(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _strict(item) for name, item in value.items()}
    return [_strict(item) for item in value] if isinstance(value, list | tuple) else value
