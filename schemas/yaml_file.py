"""Reading a YAML file as plain data, with the line of every key for error messages. Safe against hostile files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from detloom.schemas.errors import InputError

KeyPath = tuple[str | int, ...]

MAX_YAML_BYTES = 1 << 20  # a run file has a few hundred lines; more is not one
_MAX_DEPTH = 32  # a run file needs five; the parser's time grows with the square of the depth
_PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


def read_yaml(path: Path) -> tuple[Any, Callable[[KeyPath], str]]:
    """Plain data, and a function from key path to "file:line".

    Raises:
        InputError: unreadable, or as `parse_yaml`; always with file and line.
    """
    try:
        if path.stat().st_size > MAX_YAML_BYTES:
            raise InputError(f"{path}:1: got {path.stat().st_size} bytes, allowed: {MAX_YAML_BYTES}.")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}:1: cannot be read ({error}).") from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, name: str) -> tuple[Any, Callable[[KeyPath], str]]:
    """Plain data, and a function from key path to "name:line".

    Anchors and aliases are refused: a few lines of them can grow to gigabytes.

    Raises:
        InputError: too large, not YAML, an alias, a duplicate key.
    """
    lines: dict[KeyPath, int] = {}
    try:
        if len(text) > MAX_YAML_BYTES:
            raise InputError(f"{name}:1: got {len(text)} characters, allowed: {MAX_YAML_BYTES}.")
        _check_events(text, name)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = _construct(node, (), lines, name) if node is not None else None
    except InputError:
        raise
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        raise InputError(f"{name}:{line}: not valid YAML: {getattr(error, 'problem', None) or error}.") from None
    except ValueError as error:  # such as a date like 2024-13-45
        raise InputError(f"{name}:1: not a usable YAML file ({error}).") from None

    def locate(key_path: KeyPath) -> str:
        while key_path and key_path not in lines:
            key_path = key_path[:-1]
        return f"{name}:{lines.get(key_path, 1)}"

    return data, locate


def _check_events(text: str, name: str) -> None:
    """Refuse what would eat the machine before anything is built from it."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        line = _line(event)
        if depth > _MAX_DEPTH:
            raise InputError(f"{name}:{line}: lists and mappings nest more than {_MAX_DEPTH} deep.")
        if isinstance(event, yaml.AliasEvent):
            raise InputError(f"{name}:{line}: YAML aliases (*name) are not allowed here.")


def _line(marked: Any) -> int:
    """1-based line of a YAML event or node."""
    return int(marked.start_mark.line) + 1


def _construct(node: yaml.Node, key_path: KeyPath, lines: dict[KeyPath, int], name: str) -> Any:
    lines.setdefault(key_path, _line(node))
    if not isinstance(node, yaml.ScalarNode) and node.tag not in _PLAIN_TAGS:
        raise InputError(f"{name}:{_line(node)}: got the YAML tag {node.tag!r}, allowed: plain lists and mappings.")
    if isinstance(node, yaml.MappingNode):
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = _scalar(key_node)
            line = _line(key_node)
            if not isinstance(key, str):
                raise InputError(f"{name}:{line}: got the key {key!r}, allowed: text keys.")
            if key in result:
                raise InputError(f"{name}:{line}: the key '{key}' stands twice.")
            below = (*key_path, key)
            lines[below] = line
            result[key] = _construct(value_node, below, lines, name)
        return result
    if isinstance(node, yaml.SequenceNode):
        return [_construct(item, (*key_path, i), lines, name) for i, item in enumerate(node.value)]
    return _scalar(node)


def _scalar(node: yaml.Node) -> Any:
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node, deep=True)
    finally:
        loader.dispose()
