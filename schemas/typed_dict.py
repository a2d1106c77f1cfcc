"""Plain dictionaries (from YAML or JSON) to frozen dataclasses and back, with errors that say what is allowed where.

Supported field types: bool, int, float, str, Literal, X | None, tuple[X, ...], dict[str, str], dataclasses, and unions
of dataclasses, which are told apart by a "type" key that holds the class name. One member of a union may go without:
the one that says `UNTAGGED = True`.
"""

import dataclasses
import difflib
import functools
import json
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from detloom.schemas.errors import FieldError, InputError
from detloom.schemas.redact import HIDDEN, is_secret, redact

T = TypeVar("T")
KeyPath = tuple[str | int, ...]
Locate = Callable[[KeyPath], str]  # key path -> "file:line"

TYPE_KEY = "type"
_YAML_WORDS = {None: "null", True: "true", False: "false"}
_INT_LIMIT = 2**63
_EXPONENT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")  # a number that YAML 1.1 takes for text


def nearest_hint(name: str, allowed: Iterable[str]) -> str:
    """ " Did you mean 'x'?" or an empty string."""
    close = difflib.get_close_matches(str(name), list(allowed), n=1)
    return f" Did you mean '{close[0]}'?" if close else ""


def format_key_path(path: KeyPath) -> str:
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text


def show_value(path: KeyPath, value: Any) -> str:
    """A value for a message, as YAML writes it: short, and without what may be a secret."""
    if any(isinstance(key, str) and is_secret(key) for key in path):
        return HIDDEN
    if isinstance(value, int) and abs(value) > _INT_LIMIT:
        return "a number of more than 64 bits"
    return redact(_YAML_WORDS[value] if value is None or isinstance(value, bool) else repr(value))


def to_dict(value: Any) -> Any:
    """Dataclasses to dictionaries (members of unions tagged with their class name), tuples to lists."""
    return _to_plain(value, type(value))


def _to_plain(value: Any, annotation: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = type_hints(type(value))
        plain = {
            field.name: _to_plain(getattr(value, field.name), hints[field.name]) for field in dataclasses.fields(value)
        }
        return {TYPE_KEY: type(value).__name__, **plain} if needs_tag(type(value), annotation) else plain
    if isinstance(value, tuple):
        item = typing.get_args(annotation)[0] if typing.get_args(annotation) else object
        return [_to_plain(each, item) for each in value]
    return value


def to_canonical_json(value: Any) -> str:
    """The same text for equal values, whatever the order in which they were written."""
    return json.dumps(to_dict(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def from_json(cls: type[T], text: str) -> T:
    return from_dict(cls, json.loads(text), locate=lambda _: "JSON")


def from_dict(cls: type[T], data: Any, *, locate: Locate, path: KeyPath = ()) -> T:
    """Build `cls` from plain data.

    Raises:
        InputError: with the place, the key path, what was found and what is allowed.
    """
    return typing.cast(T, _convert(cls, data, locate, path))


def _fail(locate: Locate, path: KeyPath, message: str) -> typing.NoReturn:
    name = format_key_path(path)
    raise InputError(f"{locate(path)}: {redact(name) + ': ' if name else ''}{message}")


def _is_data(annotation: Any) -> bool:
    return dataclasses.is_dataclass(annotation)


def dataclass_members(annotation: Any) -> list[type]:
    """The dataclasses that an annotation allows: itself, or those of a union."""
    if _is_data(annotation):
        return [typing.cast(type, annotation)]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [member for member in typing.get_args(annotation) if isinstance(member, type) and _is_data(member)]
    return []


def needs_tag(cls: type, annotation: Any) -> bool:
    """Whether the plain form of a class has a "type" key where the annotation stands."""
    return len(dataclass_members(annotation)) > 1 and not is_untagged(cls)


def is_untagged(cls: type) -> bool:
    """Whether a class stands in its union without a "type" key."""
    return getattr(cls, "UNTAGGED", False)


@functools.cache
def type_hints(cls: type) -> dict[str, Any]:
    """Annotations of a class's fields, resolved."""
    return typing.get_type_hints(cls)


def _convert(annotation: Any, data: Any, locate: Locate, path: KeyPath) -> Any:
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        if data is None and type(None) in args:
            return None
        members = dataclass_members(annotation)
        if len(members) > 1:
            return _convert_union(members, data, locate, path)
        return _convert(next(arg for arg in args if arg is not type(None)), data, locate, path)
    if dataclasses.is_dataclass(annotation):
        return _convert_dataclass(typing.cast(type, annotation), data, locate, path)
    if origin is tuple:
        if not isinstance(data, list | tuple):
            _fail(locate, path, f"got {show_value(path, data)}, allowed: a list.")
        return tuple(_convert(args[0], item, locate, (*path, i)) for i, item in enumerate(data))
    if origin is dict:
        if not isinstance(data, Mapping):
            _fail(locate, path, f"got {show_value(path, data)}, allowed: a mapping.")
        return {
            _scalar(str, key, locate, path): _convert(args[1], item, locate, (*path, key)) for key, item in data.items()
        }
    if origin is typing.Literal:
        if data is False and "off" in args:
            data = "off"  # YAML 1.1 takes the bare word for false
        if data not in args or isinstance(data, bool) != isinstance(args[0], bool):
            allowed = ", ".join(map(repr, args))
            hint = nearest_hint(data, map(str, args))
            _fail(locate, path, f"got {show_value(path, data)}, allowed: {allowed}.{hint}")
        return data
    return _scalar(annotation, data, locate, path)


def _convert_union(members: list[type], data: Any, locate: Locate, path: KeyPath) -> Any:
    names = {member.__name__: member for member in members}
    tag = data.get(TYPE_KEY) if isinstance(data, Mapping) else None
    if isinstance(data, Mapping) and TYPE_KEY not in data:
        tag = next((member.__name__ for member in members if is_untagged(member)), None)
    if not isinstance(tag, str) or tag not in names:
        if not isinstance(data, Mapping):
            got = show_value(path, data)
        else:
            got = f"{TYPE_KEY} {show_value(path, tag)}" if tag is not None else f"no '{TYPE_KEY}' key"
        _fail(locate, path, f"got {got}, allowed: {', '.join(names)}.{nearest_hint(str(tag), names)}")
    rest = {key: value for key, value in data.items() if key != TYPE_KEY}
    return _convert_dataclass(names[tag], rest, locate, path)


def _convert_dataclass(cls: type, data: Any, locate: Locate, path: KeyPath) -> Any:
    if not isinstance(data, Mapping):
        keys = ", ".join(type_hints(cls))
        _fail(locate, path, f"got {show_value(path, data)}, allowed: a mapping with keys {keys}.")
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for key in data:
        if key not in fields:
            _fail(locate, (*path, key), f"unknown key, allowed: {', '.join(fields)}.{nearest_hint(key, fields)}")
    for name, field in fields.items():
        missing = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if missing and name not in data:
            _fail(locate, path, f"key '{name}' is missing.")
    values = {key: _convert(type_hints(cls)[key], value, locate, (*path, key)) for key, value in data.items()}
    try:
        return cls(**values)
    except FieldError as error:
        other = (*path, *error.other.split(".")) if error.other else ()
        also = f" ({format_key_path(other)}: {locate(other)})" if other else ""
        _fail(locate, (*path, *error.field.split(".")), f"{error.message}{also}")
    except InputError as error:
        _fail(locate, path, str(error))


def _scalar(annotation: Any, data: Any, locate: Locate, path: KeyPath) -> Any:
    if annotation is float and isinstance(data, str) and _EXPONENT.fullmatch(data):
        data = float(data)  # YAML 1.1 wants 1.0e-3, people write 1e-3
    if isinstance(data, int) and not -_INT_LIMIT <= data < _INT_LIMIT:
        _fail(locate, path, f"got {show_value(path, data)}, allowed: a number of at most 64 bits.")
    if annotation is float and isinstance(data, int | float) and not isinstance(data, bool):
        if not math.isfinite(data):
            _fail(locate, path, f"got {data!r}, allowed: a finite number.")
        return float(data) + 0.0  # -0.0 is 0.0: equal values have the same JSON
    if annotation is int and isinstance(data, float) and data.is_integer():
        return int(data)
    if annotation in (bool, int, str) and type(data) is annotation:
        return data
    name = _NAMES.get(annotation, str(annotation))
    _fail(locate, path, f"got {show_value(path, data)}, allowed: {name}.")


_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
