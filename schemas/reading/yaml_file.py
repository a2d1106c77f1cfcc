"""Read a YAML file as plain data, with the line of every key for error messages. Safe for untrusted files."""

import re
from pathlib import Path
from typing import Any

import yaml

from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import redact
from detloom.schemas.reading.text_file import read_text_file
from detloom.schemas.reading.typed_dict import KeyPath, Locate

_MAX_DEPTH = 32  # a run file needs 5; the parser's time grows with the square of the depth
_MAX_NODES = 20_000  # keys, values and lists; a run file has a few hundred
_BEYOND_UNICODE = re.compile(r"(?<!\\)(?:\\\\)*(\\U(?!000|0010)[0-9A-Fa-f]{8})")  # after an even number of backslashes
# Numbers that YAML 1.1 reads in base 8 or 60 and other readers in base 10 or as text.
_OTHER_BASE = re.compile(r"[-+]?0[0-7_]+|[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
_MAX_NUMBER_CHARS = 100  # PyYAML reads hexadecimal of any length, and base 60 in quadratic time
_DATE_TAG = "tag:yaml.org,2002:timestamp"
_NUMBER_TAGS = {"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"}
_PLAIN_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str", "int", "float", "bool", "null")}


def read_yaml(path: Path) -> tuple[Any, Locate]:
    """Return plain data, and a function from key path to "file:line".

    Raises:
        InputError: with file and line, if the file cannot be read, or as `parse_yaml`.
    """
    return parse_yaml(read_text_file(path), str(path))


def parse_yaml(text: str, name: str, *, number_keys: bool = False) -> tuple[Any, Locate]:
    """Return plain data, and a function from key path to "name:line".

    Anchors, aliases and tags are rejected: a few lines of aliases can expand to gigabytes.

    Args:
        number_keys: accept whole numbers as keys too, and convert them to text.

    Raises:
        InputError: for invalid YAML, too much data, an anchor, an alias, a tag, a duplicate key, a number in base 8 or
            60, or one of too many digits.
    """
    lines: dict[KeyPath, int] = {}
    _check_escapes(text, name)
    try:
        _check_events(text, name)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = _Builder(name, lines, number_keys).build(node, ()) if node is not None else None
    except yaml.YAMLError as error:
        raise InputError(f"{name}:{_line_of(error, text)}: not valid YAML: {_problem(error)}.") from None

    def locate(key_path: KeyPath) -> str:
        while key_path and key_path not in lines:
            key_path = key_path[:-1]
        return f"{name}:{lines.get(key_path, 1)}"

    return data, locate


def _line_of(error: yaml.YAMLError, text: str) -> int:
    if isinstance(error, yaml.reader.ReaderError):  # an illegal character; the error has a position but no line
        return text.count("\n", 0, error.position) + 1
    mark = getattr(error, "problem_mark", None)
    return min(mark.line, max(text.rstrip().count("\n"), 0)) + 1 if mark else 1


def _problem(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.reader.ReaderError):
        return f"the character {chr(error.character)!r} is not allowed"
    return redact(str(getattr(error, "problem", None) or error))


def _check_escapes(text: str, name: str) -> None:
    """Reject escapes beyond Unicode anywhere in the text: PyYAML passes them to `chr`, whose errors have no line."""
    found = _BEYOND_UNICODE.search(text)
    if found:
        line = text.count("\n", 0, found.start()) + 1
        raise InputError(f"{name}:{line}: not valid YAML: {found.group(1)} is beyond the last character, \\U0010FFFF.")


def _check_events(text: str, name: str) -> None:
    """Reject YAML that is too large or is not plain data, before anything is built from it."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        where = f"{name}:{_line(event)}"
        if depth > _MAX_DEPTH:
            raise InputError(f"{where}: lists and mappings nest more than {_MAX_DEPTH} deep.")
        if count > _MAX_NODES:
            raise InputError(
                f"{where}: got more than {_MAX_NODES} keys and values, allowed: a run file, a few hundred."
            )
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise InputError(f"{where}: YAML anchors and aliases (&name, *name) are not allowed here.")
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise InputError(f"{where}: got the YAML tag '{redact(tag)}', allowed: plain lists, mappings and values.")


def _line(marked: Any) -> int:
    """Return the 1-based line of a YAML event or node."""
    return int(marked.start_mark.line) + 1


class _Builder:
    """Build plain data from YAML nodes and record the line of every key."""

    def __init__(self, name: str, lines: dict[KeyPath, int], number_keys: bool) -> None:
        self._name, self._lines, self._number_keys = name, lines, number_keys
        self._constructor = yaml.SafeLoader("")

    def build(self, node: yaml.Node, key_path: KeyPath) -> Any:
        self._lines.setdefault(key_path, _line(node))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, key_path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*key_path, i)) for i, item in enumerate(node.value)]
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, key_path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            where = f"{self._name}:{_line(key_node)}"
            key = self._scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
            if self._number_keys and type(key) is int:
                key = str(key)
            if not isinstance(key, str):
                got = redact(str(key_node.value)) if isinstance(key_node, yaml.ScalarNode) else f"a {key_node.id}"
                raise InputError(f"{where}: got the key {got}, allowed: text keys.")
            if key in result:
                raise InputError(f"{where}: the key '{redact(key)}' appears twice.")
            below = (*key_path, key)
            self._lines[below] = _line(key_node)
            result[key] = self.build(value_node, below)
        return result

    def _scalar(self, node: yaml.Node) -> Any:
        where = f"{self._name}:{_line(node)}"
        if node.tag == _DATE_TAG:
            return node.value  # a date is text, with and without quotes
        if node.tag not in _PLAIN_TAGS:
            raise InputError(f"{where}: got '{redact(str(node.value))}', allowed: text, a number, true, false, null.")
        if node.tag in _NUMBER_TAGS and len(node.value) > _MAX_NUMBER_CHARS:
            got = redact(node.value)
            raise InputError(f"{where}: got {got}, allowed: a number of at most {_MAX_NUMBER_CHARS} characters.")
        try:
            value = self._constructor.construct_object(node, deep=True)
            if isinstance(value, str):
                value.encode()
        except (ValueError, yaml.YAMLError):  # half of a surrogate pair, thousands of digits
            got = redact(str(node.value).encode(errors="replace").decode())
            raise InputError(f"{where}: got {got!r}, allowed: text, a number, true, false, null.") from None
        if node.tag in _NUMBER_TAGS and _OTHER_BASE.fullmatch(node.value):
            got = redact(node.value)
            raise InputError(
                f"{where}: got {got}, which YAML 1.1 reads as {value}, allowed: a number without leading zeros or "
                f"colons; for text, write '{got}' in quotes."
            )
        return value
