"""Convert plain dictionaries (from YAML or JSON) to frozen dataclasses and back.

Errors name the file, the line and the key, and list the allowed values. Supported field types: bool, int, float, str,
Literal, X | None, tuple[X, ...], dict[str, str], dataclasses, and unions of dataclasses. A "type" key with the class
name selects the member of a union; the member with `UNTAGGED = True` needs no such key.
"""

import dataclasses
import difflib
import functools
import json
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from detloom.schemas.errors import FieldError, InputError, check
from detloom.schemas.reading.redact import HIDDEN, is_secret, redact

T = TypeVar("T")
KeyPath = tuple[str | int, ...]
Locate = Callable[[KeyPath], str]  # key path -> "file:line"

TYPE_KEY = "type"
_YAML_WORDS = {None: "null", True: "true", False: "false"}
_INT_LIMIT = 2**63
_FLOAT32_OVERFLOW = 2.0**128 - 2.0**103  # IEEE 754: from here on, a number becomes infinite in float32
_EXPONENT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")  # a number that YAML 1.1 reads as text


def nearest_hint(name: str, allowed: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the closest allowed name, or an empty string."""
    close = difflib.get_close_matches(str(name), list(allowed), n=1)
    return f" Did you mean '{close[0]}'?" if close else ""


def format_key_path(path: KeyPath) -> str:
    text = ""
    for key in path:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            text += f".{key}" if text else key
    return text


def place_of(locate: Locate, path: KeyPath) -> str:
    """Return the place and the key for the start of a message, such as "run.yaml:3: data.path".

    `--set data.path` is such a place and contains the key already.
    """
    place, key = locate(path), redact(format_key_path(path))
    return f"{place}: {key}" if key and not place.endswith(f" {key}") else place


def show_value(path: KeyPath, value: Any) -> str:
    """Format a value for a message as YAML writes it: short, and without possible secrets."""
    if any(isinstance(key, str) and is_secret(key) for key in path):
        return HIDDEN
    if isinstance(value, int) and abs(value) > _INT_LIMIT:
        return "a number of more than 64 bits"
    if value is None or isinstance(value, bool):
        return _YAML_WORDS[value]
    return redact(repr(value))


def to_dict(value: Any) -> Any:
    """Convert dataclasses to dictionaries (members of unions get a "type" key) and tuples to lists."""
    return _to_plain(value, type(value))


def _to_plain(value: Any, annotation: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = type_hints(type(value))
        plain = {}
        for field in dataclasses.fields(value):
            plain[field.name] = _to_plain(getattr(value, field.name), hints[field.name])
        return {TYPE_KEY: type(value).__name__, **plain} if needs_tag(type(value), annotation) else plain
    if isinstance(value, tuple | list):
        item = typing.get_args(annotation)[0] if typing.get_args(annotation) else object
        return [_to_plain(each, item) for each in value]
    return value


def to_canonical_json(value: Any) -> str:
    """Return JSON that is equal for equal values, independent of the order of their keys."""
    return json.dumps(to_dict(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def from_json(cls: type[T], text: str, where: str = "JSON") -> T:
    return from_dict(cls, json.loads(text), locate=lambda _: where)


def from_dict(cls: type[T], data: Any, *, locate: Locate) -> T:
    """Build `cls` from plain data.

    Raises:
        InputError: with file and line, the key path, the value found and the values allowed.
    """
    return typing.cast(T, _convert(cls, data, locate, ()))


def _fail(locate: Locate, path: KeyPath, message: str) -> typing.NoReturn:
    raise InputError(f"{place_of(locate, path)}: {message}")


def _is_data(annotation: Any) -> bool:
    return dataclasses.is_dataclass(annotation)


@functools.cache
def dataclass_members(annotation: Any) -> tuple[type, ...]:
    """Return the dataclasses that an annotation allows: the annotation itself, or the members of a union."""
    if _is_data(annotation):
        return (typing.cast(type, annotation),)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return tuple(member for member in typing.get_args(annotation) if isinstance(member, type) and _is_data(member))
    return ()


def needs_tag(cls: type, annotation: Any) -> bool:
    """Return True if the plain form of a class has a "type" key under this annotation."""
    return len(dataclass_members(annotation)) > 1 and not is_untagged(cls)


def is_untagged(cls: type) -> bool:
    """Return True if a class is the member of its union that needs no "type" key."""
    return getattr(cls, "UNTAGGED", False)


@functools.cache
def type_hints(cls: type) -> dict[str, Any]:
    """Return the resolved annotations of a class."""
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
        converted = {}
        for key, item in data.items():
            name = _scalar(str, key, locate, path)
            converted[name] = _convert(args[1], item, locate, (*path, key))
        return converted
    if origin is typing.Literal:
        if data is False and "off" in args:
            data = "off"  # YAML 1.1 reads the bare word as false
        if not any(type(data) is type(arg) and data == arg for arg in args):
            shown = (str(arg).lower() if isinstance(arg, bool) else repr(arg) for arg in args)
            allowed = ", ".join(shown)
            hint = nearest_hint(data, map(str, args))
            _fail(locate, path, f"got {show_value(path, data)}, allowed: {allowed}.{hint}")
        return data
    return _scalar(annotation, data, locate, path)


def check_choices(owner: Any) -> None:
    """Check the fields of a dataclass that have fixed choices.

    Raises:
        FieldError: a value is none of the choices.
    """
    owner_class: type = type(owner)
    for name, annotation in type_hints(owner_class).items():
        if typing.get_origin(annotation) is typing.Literal:
            choices = typing.get_args(annotation)
            value = getattr(owner, name)
            check(value in choices, name, repr(value), ", ".join(map(str, choices)))


def _convert_union(members: tuple[type, ...], data: Any, locate: Locate, path: KeyPath) -> Any:
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
    return _convert_dataclass(names[tag], rest, locate, path, member=f" of {TYPE_KEY} {tag}")


def _convert_dataclass(cls: type, data: Any, locate: Locate, path: KeyPath, member: str = "") -> Any:
    if not isinstance(data, Mapping):
        keys = ", ".join(type_hints(cls))
        _fail(locate, path, f"got {show_value(path, data)}, allowed: a mapping with keys {keys}.")
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for key in data:
        if key not in fields:
            hint = nearest_hint(key, fields)
            _fail(locate, (*path, key), f"unknown key{member}, allowed: {', '.join(fields)}.{hint}")
    for name, field in fields.items():
        missing = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if missing and name not in data:
            _fail(locate, path, f"key '{name}' is missing.")
    hints = type_hints(cls)
    values = {}
    for key, value in data.items():
        complete = _over_default(fields[key], hints[key], value)
        values[key] = _convert(hints[key], complete, locate, (*path, key))
    try:
        return cls(**values)
    except FieldError as error:
        other = (*path, *error.other.split(".")) if error.other else ()
        also = f" ({format_key_path(other)}: {locate(other)})" if other else ""
        _fail(locate, (*path, *error.field.split(".")), f"{error.message}{also}")
    except InputError as error:
        _fail(locate, path, str(error))


def _over_default(field: Any, annotation: Any, value: Any) -> Any:
    """Return a section of settings with the keys of the field's default that it leaves out."""
    is_section = isinstance(value, Mapping) and dataclasses.is_dataclass(annotation)
    if not is_section or type(field.default) is not annotation:
        return value
    return {**to_dict(field.default), **value}


def _scalar(annotation: Any, data: Any, locate: Locate, path: KeyPath) -> Any:
    if annotation is float and isinstance(data, str) and _EXPONENT.fullmatch(data):
        data = float(data)  # YAML 1.1 requires 1.0e-3, users write 1e-3
    if annotation is int and isinstance(data, float) and data.is_integer():
        data = int(data)
    if isinstance(data, int) and not -_INT_LIMIT <= data < _INT_LIMIT:
        _fail(locate, path, f"got {show_value(path, data)}, allowed: a number of at most 64 bits.")
    if annotation is float and isinstance(data, int | float) and not isinstance(data, bool):
        if not abs(data) < _FLOAT32_OVERFLOW:  # also NaN
            _fail(locate, path, f"got {data!r}, allowed: a number that is finite in float32.")
        return float(data) + 0.0  # turns -0.0 into 0.0, so that equal values have equal JSON
    if annotation in (bool, int, str) and type(data) is annotation:
        return data
    name = _NAMES.get(annotation, str(annotation))
    _fail(locate, path, f"got {show_value(path, data)}, allowed: {name}.")


_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def nested_dataclasses(cls: type) -> Iterator[type]:
    """Yield `cls` and all dataclasses nested in it, each once, in the order of the fields."""
    seen: dict[type, None] = {}

    def visit(each: type) -> None:
        if each in seen:
            return
        seen[each] = None
        hints = type_hints(each)
        for field in dataclasses.fields(each):
            for member in _members(hints[field.name]):
                visit(member)

    visit(cls)
    yield from seen


def _members(annotation: object) -> Iterator[type]:
    """Yield the dataclasses that an annotation mentions."""
    yield from dataclass_members(annotation)
    if typing.get_origin(annotation) is tuple:
        yield from _members(typing.get_args(annotation)[0])
