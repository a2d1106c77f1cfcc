"""Messages, fields and enums of the Object Detection API's configuration, read from fields.tsv."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = "TrainEvalPipelineConfig"
OVERRIDES = "[detloom.overrides]"  # detloom's extension of the root, for settings without a field in the format

# Lowest and highest value of the numeric field types. Python can read a larger float, but in the Object Detection API
# it would be infinity.
MAX_FLOAT = 3.4028234663852886e38
RANGES: dict[str, tuple[float, float]] = {
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "float": (-MAX_FLOAT, MAX_FLOAT),
}
_ZEROS: dict[str, Any] = {"int32": 0, "uint32": 0, "float": 0.0, "bool": False, "string": ""}


@dataclass(frozen=True)
class Field:
    """One field of a message.

    Attributes:
        kind: "message", "enum", or the name of a scalar type.
        type: name of the message, the enum or the scalar type.
        default: value of an omitted field; enums by name; None for messages and repeated fields.
        oneof: name of the oneof that contains the field, or "".
    """

    number: int
    name: str
    repeated: bool
    kind: str
    type: str
    default: Any
    oneof: str
    deprecated: bool


@dataclass(frozen=True)
class MessageType:
    """A message's fields by name, in the order of their numbers."""

    name: str
    fields: dict[str, Field]
    extensible: bool = False

    def members(self, oneof: str) -> tuple[str, ...]:
        """Return the names of the fields in a oneof."""
        return tuple(name for name, field in self.fields.items() if field.oneof == oneof)


@functools.cache
def _inventory() -> tuple[dict[str, MessageType], dict[str, dict[str, int]]]:
    """Read all messages and enums, by name."""
    lines = Path(__file__).with_name("fields.tsv").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    enums = {row[1]: _enum_values(row[2]) for row in rows if row[0] == "enum"}
    names = {row[1] for row in rows if row[0] == "message"}
    messages: dict[str, MessageType] = {}
    for row in rows:
        if row[0] == "message":
            messages[row[1]] = MessageType(row[1], {}, extensible=len(row) > 2)
        elif row[0] != "enum":
            field = _field(row, names, enums)
            next(reversed(messages.values())).fields[field.name] = field
    sets = Field(1, "set", True, "string", "string", None, "", False)
    messages[OVERRIDES] = MessageType(OVERRIDES, {"set": sets})
    return messages, enums


def _enum_values(text: str) -> dict[str, int]:
    return {name: int(number) for name, _, number in (item.partition("=") for item in text.split())}


def _field(row: list[str], messages: set[str], enums: dict[str, dict[str, int]]) -> Field:
    number, name, label, kind, default, oneof, flags = (*row, "", "", "")[:7]
    type_name = kind.removeprefix("enum ")
    if kind in messages:
        kind = "message"
    elif kind.startswith("enum "):
        kind = "enum"
    value: Any = default
    if kind == "message" or label == "repeated":
        value = None
    elif kind == "enum":
        value = default or next(iter(enums[type_name]))
    elif kind == "bool":
        value = default == "true"
    elif kind != "string":
        value = type(_ZEROS[kind])(default) if default else _ZEROS[kind]
    return Field(int(number), name, label == "repeated", kind, type_name, value, oneof, "deprecated" in flags.split())


def message_types() -> dict[str, MessageType]:
    """Return all messages by name, including detloom's extension."""
    return _inventory()[0]


def enum_values(name: str) -> dict[str, int]:
    """Return the numbers of an enum by name."""
    return _inventory()[1][name]
