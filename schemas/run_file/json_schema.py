"""Generate the JSON Schema (draft 2020-12) of the run file, for editors that complete and check YAML.

The schema contains names, types and choices; only the dataclasses check ranges.
"""

import dataclasses
import types
import typing
from typing import Any

from detloom.schemas.reading.field_docs import class_doc, field_docs
from detloom.schemas.reading.typed_dict import TYPE_KEY, dataclass_members, needs_tag, to_dict
from detloom.schemas.run_file.data_checks import CountCheck
from detloom.schemas.run_file.run_file import CONFIG_SECTIONS, RunFile

_SCALARS = {bool: "boolean", int: "integer", float: "number", str: "string"}


def run_file_schema() -> dict[str, Any]:
    """Return the schema. Keys in the detector's sections are optional, because they override the detector's values."""
    definitions: dict[str, Any] = {}
    schema = _object(RunFile, definitions, partial=False)
    schema["required"] = [name for name in schema["required"] if name not in CONFIG_SECTIONS]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "detloom run file",
        **schema,
        "$defs": dict(sorted(definitions.items())),
    }


def _object(cls: type, definitions: dict[str, Any], *, partial: bool, tag: bool = False) -> dict[str, Any]:
    hints, docs = typing.get_type_hints(cls), field_docs(cls)
    properties: dict[str, Any] = {TYPE_KEY: {"const": cls.__name__}} if tag else {}
    required = [] if partial or not tag else [TYPE_KEY]
    for field in dataclasses.fields(cls):
        # Keys that are not written are those of the detector, or of the field's default.
        has_defaults = (cls is RunFile and field.name in CONFIG_SECTIONS) or isinstance(field.default, CountCheck)
        properties[field.name] = _value(hints[field.name], definitions, partial=partial or has_defaults)
        properties[field.name]["description"] = docs.get(field.name, "")
        if field.default is not dataclasses.MISSING:
            properties[field.name]["default"] = to_dict(field.default)
        elif not partial:
            required.append(field.name)
    return {
        "type": "object",
        "description": class_doc(cls),
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _reference(cls: type, definitions: dict[str, Any], *, partial: bool, tag: bool) -> dict[str, Any]:
    """Add one definition per class and return a reference to it."""
    name = cls.__name__ + ("Override" if partial else "")
    if name not in definitions:
        definitions[name] = {}  # stops endless recursion
        definitions[name] = _object(cls, definitions, partial=partial, tag=tag)
    return {"$ref": f"#/$defs/{name}"}


def _value(annotation: Any, definitions: dict[str, Any], *, partial: bool) -> dict[str, Any]:
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        members = dataclass_members(annotation)
        choices = [
            _reference(member, definitions, partial=partial, tag=needs_tag(member, annotation)) for member in members
        ]
        plain = [arg for arg in args if arg in _SCALARS or typing.get_origin(arg) in (typing.Literal, tuple)]
        choices += [_value(arg, definitions, partial=partial) for arg in plain]
        if type(None) in args:
            choices.append({"type": "null"})
        return {"anyOf": choices}
    if dataclasses.is_dataclass(annotation):
        return _reference(typing.cast(type, annotation), definitions, partial=partial, tag=False)
    if origin is tuple:  # a list replaces the detector's list, so its items must be complete
        return {"type": "array", "items": _value(args[0], definitions, partial=False)}
    if origin is typing.Literal:
        return {"enum": list(args)}
    return {"type": _SCALARS[annotation]}
