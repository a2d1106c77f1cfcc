"""Messages of TensorFlow's errors for people."""

import re

_NAMES = re.compile(r"\{\{.*?\}\} ?| ?\[Op:\w+\]( name:)?")


def without_operation_names(message: str) -> str:
    """Return a message of TensorFlow without the names of its operations."""
    return _NAMES.sub("", message)
