"""Describe the fields of a settings class, for options of commands and parameters of components."""

from dataclasses import MISSING, fields
from typing import Any, NamedTuple

from detloom.schemas.reading.typed_dict import type_hints
from detloom.schemas.run_file.json_schema import field_docs


class Setting(NamedTuple):
    """A field; `default` is None for a mapping that is empty by default."""

    name: str
    annotation: Any
    default: Any
    doc: str


def settings_of(cls: type, *, leave_out: tuple[str, ...] = ()) -> dict[str, Setting]:
    """Return the fields of a dataclass by name."""
    hints, docs = type_hints(cls), field_docs(cls)
    settings = {}
    for item in fields(cls):
        if item.name not in leave_out:
            default = None if item.default is MISSING else item.default
            settings[item.name] = Setting(item.name, hints[item.name], default, docs[item.name])
    return settings
