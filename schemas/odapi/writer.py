"""Format a `TrainEvalConfig` as text."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.odapi.fields import OVERRIDES, RANGES, ROOT, Field, message_types
from detloom.schemas.odapi.reader import STRUCTURES, read_messages
from detloom.schemas.odapi.rules import NOTHING, Ignored, Mapped, item_type, plain_default, tagged_classes
from detloom.schemas.odapi.text_format import merge_text, new_root
from detloom.schemas.reading.typed_dict import (
    TYPE_KEY,
    KeyPath,
    dataclass_members,
    format_key_path,
    is_untagged,
    to_dict,
    type_hints,
)

_INDENT = "  "


def format_config(config: TrainEvalConfig) -> str:
    """Write all fields of the format, and the settings without a field in detloom's extension."""
    plain = to_dict(config)
    text = "".join(f"{line}\n" for line in _message_lines(ROOT, plain, ""))
    root = new_root("text")
    merge_text(root, text, "text")
    unsaid = list(_differences(TrainEvalConfig, plain, read_messages(root).located.data, ()))
    if not unsaid:
        return text
    settings = (f"{format_key_path(path)}={json.dumps(value, ensure_ascii=False)}" for path, value in unsaid)
    sets = "".join(f"{_INDENT}set: {_quote(setting)}\n" for setting in settings)
    return f"{text}{OVERRIDES} {{\n{sets}}}\n"


def _message_lines(message: str, plain: Mapping[str, Any], indent: str) -> Iterator[str]:
    """Yield the lines of a message with the values of `plain`."""
    structure = STRUCTURES[message]
    for field in message_types()[message].fields.values():
        rule = structure.rule(field.name)
        if isinstance(rule, Ignored) and rule.constant is not NOTHING:
            yield from _field_lines(field, rule.constant, indent)
        elif isinstance(rule, Mapped):
            value = rule.write(plain) if rule.write else _find(plain, rule.key)
            yield from _field_lines(field, value, indent)


def _find(plain: Any, key: str) -> Any:
    """Return the value at a key, or None."""
    if not key:
        return plain
    for step in key.split("."):
        plain = plain.get(step) if isinstance(plain, Mapping) else None
    return plain


def _field_lines(field: Field, value: Any, indent: str) -> Iterator[str]:
    if value is None:
        return
    if field.kind == "message":
        messages = value if isinstance(value, list) else [value]
        for message in messages:
            yield from _sub_message_lines(field, message, indent)
        return
    values = value if field.repeated else [value]
    if not values or not all(_is_in_range(field, each) for each in values):
        return
    texts = ", ".join(_format(field, each) for each in values)
    yield f"{indent}{field.name}: {f'[{texts}]' if field.repeated else texts}"


def _sub_message_lines(field: Field, plain: Any, indent: str) -> Iterator[str]:
    structure = STRUCTURES.get(field.type)
    if structure is None:  # an empty message that only has to exist
        yield f"{indent}{field.name} {{\n{indent}}}"
        return
    tag = structure.makes.__name__ if structure.makes in tagged_classes() else None
    is_member = tag is not None or (structure.makes is not None and is_untagged(structure.makes))
    if is_member and plain.get(TYPE_KEY) != tag:
        return
    lines = list(_message_lines(field.type, plain, indent + _INDENT))
    if lines or not structure.choice:
        yield f"{indent}{field.name} {{"
        yield from lines
        yield f"{indent}}}"


def _is_in_range(field: Field, value: Any) -> bool:
    """Return True if the field's type can hold the number; other numbers are written to the extension."""
    low, high = RANGES.get(field.kind, (value, value))
    return bool(low <= value <= high)


def _format(field: Field, value: Any) -> str:
    if field.kind == "string":
        return _quote(value)
    if field.kind == "bool":
        return "true" if value else "false"
    return repr(float(value)) if field.kind == "float" else str(value)


def _quote(text: str) -> str:
    """Quote a text; write unprintable characters as octal escapes of their UTF-8 bytes."""
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}

    def escape(character: str) -> str:
        if character in escapes:
            return escapes[character]
        if character.isprintable():
            return character
        return "".join(f"\\{byte:03o}" for byte in character.encode())

    return '"' + "".join(map(escape, text)) + '"'


def _differences(annotation: Any, wanted: Any, said: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Yield (key, value) where `said` plus the dataclasses' defaults differs from `wanted`."""
    if isinstance(wanted, list) and isinstance(said, list) and len(wanted) == len(said):
        items = zip(wanted, said, strict=True)
        if any(True for one, other in items for _ in _differences(item_type(annotation), one, other, path)):
            yield path, wanted
        return
    members = dataclass_members(annotation)
    both = members and isinstance(wanted, dict) and isinstance(said, dict)
    if not both or wanted.get(TYPE_KEY) != said.get(TYPE_KEY):
        if wanted != said:
            yield path, wanted
        return
    tag = wanted.get(TYPE_KEY)
    tags = {None if is_untagged(member) else member.__name__: member for member in members}
    cls = tags.get(tag, members[0])
    for field in dataclasses.fields(cls):
        name = field.name
        below = said[name] if name in said else plain_default(cls, name)
        yield from _differences(type_hints(cls)[name], wanted[name], below, (*path, name))
