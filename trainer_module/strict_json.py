"""Measured numbers as JSON that every reader accepts: it has neither NaN nor infinity, so null stands for them."""

import json
import math
from collections.abc import Mapping
from typing import Any


def to_strict_json(value: Any, indent: int | None = None) -> str:
    """Of plain values, to any depth; what is no JSON value becomes its text."""
    return json.dumps(_strict(value), ensure_ascii=False, allow_nan=False, default=str, indent=indent)


def read_number(value: float | None) -> float:
    """NaN for null.

    Raises:
        TypeError, ValueError: if it is no number.
    """
    return math.nan if value is None else float(value)


def _strict(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _strict(each) for name, each in value.items()}
    return [_strict(each) for each in value] if isinstance(value, list | tuple) else value
