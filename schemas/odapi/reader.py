"""Convert a tree of messages to the plain tree of `TrainEvalConfig` and the three lists of fields."""

import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from detloom.schemas.errors import InputError
from detloom.schemas.odapi.fields import OVERRIDES, Field, message_types
from detloom.schemas.odapi.mapping_center_net import CENTER_NET
from detloom.schemas.odapi.mapping_faster_rcnn import FASTER_RCNN
from detloom.schemas.odapi.mapping_model import MODEL
from detloom.schemas.odapi.mapping_network import NETWORK
from detloom.schemas.odapi.mapping_steps import STEPS
from detloom.schemas.odapi.mapping_train import TRAIN
from detloom.schemas.odapi.rules import (
    NOTHING,
    FieldNote,
    Ignored,
    Mapped,
    PipelineConfigReport,
    Refused,
    Structure,
    UnsupportedError,
    add_implied_rules,
    allowed_texts,
    fields_without_default,
    tagged_classes,
)
from detloom.schemas.odapi.text_format import Leaf, Message, field_leaves, leaves
from detloom.schemas.reading.overrides import Located, merge, nest, split_key
from detloom.schemas.reading.proto_text import MAX_DEPTH, Scalar, TextLine
from detloom.schemas.reading.redact import HIDDEN, is_secret, redact
from detloom.schemas.reading.typed_dict import TYPE_KEY, KeyPath, format_key_path

# The rules of all messages that have a counterpart in the configuration tree; other messages are refused.
STRUCTURES = add_implied_rules({**TRAIN, **MODEL, **CENTER_NET, **FASTER_RCNN, **NETWORK, **STEPS})
MISSING = "(missing)"


class _Missing(NamedTuple):
    """A missing field; an override may have set it at `key` in the tree."""

    leaf: Leaf
    reason: str
    key: KeyPath | None


def read_messages(root: Message) -> PipelineConfigReport:
    """Convert the messages of a file to a report.

    Raises:
        InputError: for an invalid override in the file.
    """
    reader = _Reader()
    reader.message(root, ())
    reader.extensions(root)
    for leaf, reason in root.dropped:
        reader.note("ignored", leaf, reason)
    located = _apply_settings(reader.data, reader.places, reader.settings, root.place)
    reader.check_missing(located)
    lists = {name: _in_order(notes) for name, notes in reader.notes.items()}
    return PipelineConfigReport(root.place.name, located, **lists)


def _apply_settings(
    data: Any, places: Mapping[KeyPath, TextLine], settings: Iterable[Scalar], start: TextLine
) -> Located:
    """Merge the settings of detloom's extension over the tree, in order."""

    def locate(path: KeyPath) -> str:
        """Return where a key, or the closest key above it, was written."""
        while path and path not in places:
            path = path[:-1]
        return str(places.get(path, start))

    return merge(Located(data, locate), *map(_setting, settings))


def _setting(scalar: Scalar) -> Located:
    return Located(nest(*_read_setting(scalar)), lambda _: str(scalar.place))


def _read_setting(scalar: Scalar) -> tuple[KeyPath, Any]:
    """Return key and value of one `set: "key.path=JSON"`."""
    where = f"{scalar.place}: {OVERRIDES}.set"
    key, separator, text = scalar.value.partition("=")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        separator = ""
    if not separator or _is_deeper(value, MAX_DEPTH):
        raise InputError(f'{where}: got {_setting_text(scalar)}, allowed: "key.path=JSON".')
    path = split_key(key.strip(), where)
    return path, value


def _setting_text(scalar: Scalar) -> str:
    return HIDDEN if is_secret(scalar.value) else redact(scalar.text)


def _is_deeper(value: Any, limit: int) -> bool:
    """Return True if lists and mappings are nested more than `limit` levels deep."""
    if limit < 0:
        return True
    if isinstance(value, dict):
        value = list(value.values())
    return isinstance(value, list) and any(_is_deeper(item, limit - 1) for item in value)


def _in_order(notes: Iterable[tuple[Leaf, str]]) -> tuple[FieldNote, ...]:
    """Sort notes: fields in the order of the file, then missing fields."""

    def order(note: tuple[Leaf, str]) -> tuple[bool, int]:
        leaf, _ = note
        return leaf.text == MISSING, leaf.place.line

    ordered = sorted(notes, key=order)
    return tuple(FieldNote(leaf.path, str(leaf.place), leaf.text, reason) for leaf, reason in ordered)


class _Reader:
    """Collect the tree, the places where its keys were written, and the notes."""

    def __init__(self) -> None:
        self.data: dict[str, Any] = {}
        self.places: dict[KeyPath, TextLine] = {}
        self.notes: dict[str, list[tuple[Leaf, str]]] = {"mapped": [], "ignored": [], "refused": []}
        self.settings: list[Scalar] = []
        self._missing: list[_Missing] = []
        self._implied = 0  # above 0 inside a message that was not written; its fields are not noted

    def note(self, which: str, leaf: Leaf, reason: str) -> None:
        if not self._implied:
            self.notes[which].append((leaf, reason))

    # --- messages -----------------------------------------------------------------------------------------------------

    def message(self, message: Message, key: KeyPath) -> None:
        """Read a message whose values are stored at `key`."""
        structure = STRUCTURES[message.type]
        if structure.makes:
            tagged = structure.makes in tagged_classes()
            self._put(key, {TYPE_KEY: structure.makes.__name__} if tagged else {}, message.place)
        is_chosen = self._choice(message, structure, key)
        if not message.values and message.path and is_chosen:
            self.note("mapped", Leaf(message.path, message.place, "{}"), format_key_path(key))
        for field in message_types()[message.type].fields.values():
            self._field(message, structure, field, key)
        self._required(message, structure, key)

    def _choice(self, message: Message, structure: Structure, key: KeyPath) -> bool:
        """Return False if no member of the message's oneof is set."""
        if not structure.choice:
            return True
        members = message_types()[message.type].members(structure.choice)
        if any(name in message.values for name in members):
            return True
        if structure.otherwise is not NOTHING:
            self._put(key, structure.otherwise, message.place)
            return True
        rules = {name: structure.rule(name, message) for name in members}
        allowed = [name for name, rule in rules.items() if not isinstance(rule, Refused)]
        mapped = [rule for rule in rules.values() if isinstance(rule, Mapped)]
        in_list = bool(key) and isinstance(key[-1], int)  # the next item will use this index
        place = (*key, *_steps(mapped[0].key)) if mapped and not in_list else None
        leaf = Leaf(message.path, message.place, MISSING)
        self._missing.append(_Missing(leaf, f"nothing is set, allowed: {', '.join(allowed)}", place))
        return False

    def _required(self, message: Message, structure: Structure, key: KeyPath) -> None:
        def add(field: str, at: KeyPath | None) -> None:
            leaf = Leaf(message.below(field), message.place, MISSING)
            self._missing.append(_Missing(leaf, "is missing", at))

        for field in structure.required:
            if field not in message.values:
                add(field, None)
        if structure.makes is None:
            return
        for name in fields_without_default(structure.makes):
            for field, rule in structure.fields.items():
                is_source = name == field or (isinstance(rule, Mapped) and rule.key == name)
                if is_source and field not in message.values:
                    add(field, (*key, name))

    def _field(self, message: Message, structure: Structure, field: Field, key: KeyPath) -> None:
        rule = structure.rule(field.name, message)
        values = message.values.get(field.name, [])
        if not values:
            if isinstance(rule, Mapped) and rule.implied is not NOTHING:
                self._imply(message, structure, field, rule, key)
        elif isinstance(rule, Ignored):
            for leaf in field_leaves(message, field.name):
                self.note("ignored", leaf, rule.reason)
        elif isinstance(rule, Refused):
            self._refuse(message, field, rule)
        elif isinstance(values[0], Scalar):
            self._scalars(message, structure, field, rule, key)
        else:
            self._messages(message, structure, field, rule, key)

    def _imply(self, message: Message, structure: Structure, field: Field, rule: Mapped, key: KeyPath) -> None:
        """Read an omitted field as if its implied value had been written."""

        def scalar(value: Any) -> Scalar:
            return Scalar(value, str(value), message.place)

        self._implied += 1
        if field.kind == "message":
            values: dict[str, Any] = {name: [scalar(value)] for name, value in rule.implied.items()}
            written = Message(field.type, message.below(field.name), message.place, values)
            self.message(written, (*key, *_steps(rule.key)))
        else:
            filled = Message(message.type, message.path, message.place, {field.name: [scalar(rule.implied)]})
            self._scalars(filled, structure, field, rule, key)
        self._implied -= 1

    def _messages(self, message: Message, structure: Structure, field: Field, rule: Mapped, key: KeyPath) -> None:
        below = (*key, *_steps(rule.key))
        for i, value in enumerate(message.values[field.name]):
            assert isinstance(value, Message)
            if field.name not in structure.single:
                place_of_value = (*below, self._length(below)) if field.repeated else below
                self.message(value, place_of_value)
                self._add_unwritten(rule, place_of_value, value.place)
            elif i == 0:
                self.message(value, below)
            else:
                self._refuse_message(value, structure.single[field.name])

    def _add_unwritten(self, rule: Mapped, key: KeyPath, place: TextLine) -> None:
        tree = Located(self.data, str)
        for name, value in rule.adds.items():
            if not tree.holds((*key, name)):
                self._put((*key, name), value, place)

    def _length(self, path: KeyPath) -> int:
        """Return the length of a list in the tree, which contains no refused items."""
        located = Located(self.data, str)
        found: Any = self.data
        for step in path if located.holds(path) else ():
            found = found[step]
        return len(found) if isinstance(found, list) else 0

    # --- values -------------------------------------------------------------------------------------------------------

    def _scalars(self, message: Message, structure: Structure, field: Field, rule: Mapped, key: KeyPath) -> None:
        scalars = [value for value in message.values[field.name] if isinstance(value, Scalar)]
        leaf = next(field_leaves(message, field.name))
        values = [scalar.value for scalar in scalars]
        value: Any = values if field.repeated else values[0]
        try:
            self._check_text(structure, rule, value)
            value = rule.read(value) if rule.read else value
        except UnsupportedError as error:
            self.note("refused", leaf, f"got {leaf.text}, allowed: {error}")
            return
        below = (*key, *_steps(rule.key))
        paths = self._put(below, value, leaf.place)
        if field.repeated:
            self.places |= {(*below, i): scalar.place for i, scalar in enumerate(scalars)}
        self.note("mapped", leaf, ", ".join(map(format_key_path, paths)))

    @staticmethod
    def _check_text(structure: Structure, rule: Mapped, value: Any) -> None:
        if structure.makes is None or rule.read:
            return
        allowed = allowed_texts(structure.makes, rule.key)
        texts = value if isinstance(value, list) else [value]
        if allowed and not set(texts) <= set(allowed):
            raise UnsupportedError(", ".join(allowed))

    def _put(self, path: KeyPath, value: Any, place: TextLine) -> list[KeyPath]:
        """Set a key of the tree, or all keys of a mapping; return the keys of single values."""
        self.places.setdefault(path, place)
        if not path:
            node: Any = self.data
        else:
            parent: Any = self.data
            for step, following in itertools.pairwise(path):
                parent = _child(parent, step, list if isinstance(following, int) else dict)
            if not isinstance(value, dict):
                parent[path[-1]] = value
                return [path]
            node = _child(parent, path[-1], dict)
        assert isinstance(node, dict)
        paths: list[KeyPath] = []
        for key, below in value.items():
            paths += self._put((*path, key), below, place)
        return paths or [path]

    # --- refused fields -----------------------------------------------------------------------------------------------

    def _refuse(self, message: Message, field: Field, rule: Refused) -> None:
        if field.kind == "message":
            for value in message.values[field.name]:
                assert isinstance(value, Message)
                self._refuse_message(value, rule.reason)
            return
        leaf = next(field_leaves(message, field.name))
        if rule.harmless is NOTHING:
            self.note("refused", leaf, rule.reason)
        elif message.scalar(field.name) == rule.harmless:
            self.note("ignored", leaf, f"has no effect; another value is refused: {rule.reason}")
        else:
            self.note("refused", leaf, f"got {leaf.text}, allowed: {show(rule.harmless)}; {rule.reason}")

    def _refuse_message(self, message: Message, reason: str) -> None:
        if not message.values:
            self.note("refused", Leaf(message.path, message.place, "{}"), reason)
            return
        self.note("refused", Leaf(message.path, message.place, "{...}"), reason)
        for leaf in leaves(message):
            self.note("refused", leaf, f"part of {message.path}")

    def extensions(self, root: Message) -> None:
        for name, values in root.values.items():
            if name == OVERRIDES:
                self._own_extension(values[0])
            elif name.startswith("["):
                for leaf in field_leaves(root, name):
                    self.note("refused", leaf, f"the extension {name} is unknown")

    def _own_extension(self, extension: Message | Scalar) -> None:
        assert isinstance(extension, Message)
        for i, scalar in enumerate(extension.values.get("set", [])):
            assert isinstance(scalar, Scalar)
            self.settings.append(scalar)
            leaf = Leaf(f"{OVERRIDES}.set[{i}]", scalar.place, _setting_text(scalar))
            self.note("mapped", leaf, redact(scalar.value.partition("=")[0].strip()))
        if not extension.values:
            self.note("ignored", Leaf(extension.path, extension.place, "{}"), "sets nothing")

    def check_missing(self, located: Located) -> None:
        """Note missing fields that are neither written, nor refused, nor set by an override."""
        refused = {path for leaf, _ in self.notes["refused"] for path in _paths_above(leaf.path)}
        seen: set[str] = set()
        for leaf, reason, key in self._missing:
            if leaf.path in seen:
                continue
            seen.add(leaf.path)
            if key is not None and located.holds(key):
                if reason != "is missing":
                    self.note("mapped", leaf._replace(text="{}"), format_key_path(key))
            elif leaf.path not in refused:
                self.note("refused", leaf, reason)
                refused |= _paths_above(leaf.path)


def _paths_above(path: str) -> set[str]:
    """Return the path of a field and the paths of the messages that contain it."""
    return {path[: end.start()] for end in re.finditer(r"[.\[]|$", path)}


def _steps(key: str) -> tuple[str, ...]:
    return tuple(key.split(".")) if key else ()


def _child(parent: Any, step: str | int, make: Callable[[], Any]) -> Any:
    """Return the child of a mapping or a list; create it if it does not exist."""
    if isinstance(step, int):
        if step == len(parent):
            parent.append(make())
    elif not isinstance(parent.get(step), dict | list):
        parent[step] = make()
    return parent[step]


def show(value: Any) -> str:
    """Format a value as the text format writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return '""' if value == "" else str(value)
