"""Parse the text of a `pipeline.config` to a tree of messages that stores the line of every value.

The result equals that of `text_format.Merge`, with which the Object Detection API reads its files: the last of several
values counts, messages are merged, repeated fields are appended, and a member of a oneof replaces the other members.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from detloom.schemas.odapi.fields import OVERRIDES, RANGES, ROOT, Field, MessageType, enum_values, message_types
from detloom.schemas.odapi.tf1 import removed_hint
from detloom.schemas.reading import proto_text
from detloom.schemas.reading.proto_text import Scalar, TextLine, TextParser
from detloom.schemas.reading.redact import HIDDEN, is_secret, redact
from detloom.schemas.reading.typed_dict import nearest_hint

_MAX_NUMBER = 1000  # characters; Python needs quadratic time for the digits of a whole number
_MAX_VALUES = 10_000  # per text; the largest file of the zoo has a few hundred


@dataclass
class Message(proto_text.Message):
    """The written part of a message of the Object Detection API.

    Attributes:
        type: name of the message type; "" inside an unknown extension.
        values: values by field; one value for a field that is not repeated.
        dropped: values that were replaced, in this message and below; only the root has them.
    """

    values: dict[str, list["Scalar | Message"]] = field(default_factory=dict)
    dropped: list["Dropped"] = field(default_factory=list)

    def scalar(self, name: str) -> Any:
        """Return the value of a field that is not repeated, or its default."""
        found = self.values.get(name)
        if not found:
            return message_types()[self.type].fields[name].default
        assert isinstance(found[0], Scalar)
        return found[0].value


class Leaf(NamedTuple):
    """The text of one field: a value, all values of a repeated field, or an empty message."""

    path: str
    place: TextLine
    text: str


class Dropped(NamedTuple):
    """A written value that has no effect."""

    leaf: Leaf
    reason: str


def leaf_of(path: str, place: TextLine, text: str) -> Leaf:
    """Return a leaf whose text is shortened and without possible secrets."""
    return Leaf(path, place, HIDDEN if is_secret(path) else redact(text))


def field_leaves(message: Message, name: str) -> Iterator[Leaf]:
    """Yield the leaves of a field of a message, including those of nested messages."""
    scalars = [value for value in message.values[name] if isinstance(value, Scalar)]
    if scalars:
        fields = message_types()[message.type].fields if message.type else {}
        texts = ", ".join(scalar.text for scalar in scalars)
        is_list = fields[name].repeated if name in fields else len(scalars) > 1
        yield leaf_of(message.below(name), scalars[0].place, f"[{texts}]" if is_list else texts)
    for value in message.values[name]:
        if isinstance(value, Message):
            yield from leaves(value)


def leaves(message: Message) -> Iterator[Leaf]:
    """Yield the leaves of a message; an empty message is a leaf itself."""
    if not message.values and message.path:
        yield Leaf(message.path, message.place, "{}")
    for name in message.values:
        yield from field_leaves(message, name)


def new_root(name: str) -> Message:
    """Return the root message of an empty file."""
    return Message(ROOT, "", TextLine(name, 1))


def merge_text(root: Message, text: str, name: str) -> None:
    """Merge a text into the messages of earlier texts.

    Raises:
        InputError: with file and line, if the syntax is invalid, a field is unknown or has the wrong type, or the text
            has too many values.
    """
    _Parser(root, text, name, _MAX_VALUES).parse()


class _Parser(TextParser[Message]):
    """A parser that knows the messages of the Object Detection API and detloom's extension."""

    # --- fields -------------------------------------------------------------------------------------------------------

    def _field_value(self, message: Message, name: str, place: TextLine, depth: int) -> None:
        known = self._find_field(message, name, place)
        if known is None:
            self._untyped_field(message, name, place, depth)
        elif known.kind == "message":
            self._tokens.TryConsume(":")
            self._messages(message, known, place, depth)
        else:
            if not self._tokens.TryConsume(":"):
                self._fail(message.below(name), f"{self._got()}, allowed: ':' and a value.")
            self._scalars(message, known, place)

    def _find_field(self, message: Message, name: str, place: TextLine) -> Field | None:
        """Return the description of a field; None for and within unknown extensions."""
        if not message.type:
            return None
        known = message_types()[message.type]
        if name.startswith("["):
            if not known.extensible:
                self._fail(message.below(name), f"{known.name} has no extensions.", place)
            if name == OVERRIDES and known.name == ROOT:
                return Field(0, name, False, "message", OVERRIDES, None, "", False)
            return None
        if name not in known.fields:
            hint = removed_hint(name) or nearest_hint(name, known.fields)
            hint = hint or f" Its fields: {', '.join(known.fields) or 'none'}."
            self._fail(message.below(name), f"unknown field of {_shown(known)}.{hint}", place)
        return known.fields[name]

    # --- messages -----------------------------------------------------------------------------------------------------

    def _messages(self, parent: Message, known: Field, place: TextLine, depth: int) -> None:
        self._enter_oneof(parent, known, place)
        if not (known.repeated and self._tokens.LookingAt("[")):
            self._message(parent, known, place, depth)
            return
        for _ in self._list(parent, known.name, place):
            self._message(parent, known, None, depth)

    def _message(self, parent: Message, known: Field, place: TextLine | None, depth: int) -> None:
        found = parent.values.setdefault(known.name, [])
        path = parent.below(f"{known.name}[{len(found)}]" if known.repeated else known.name)
        self._count(path)
        opening, place_of_opening = self._opening(path)
        if known.repeated or not found:
            found.append(Message(known.type, path, place or place_of_opening))
        message = found[-1]
        assert isinstance(message, Message)
        self._body(message, opening, place_of_opening, depth + 1)

    def _empty_list(self, path: str, place: TextLine) -> None:
        self._root.dropped.append(Dropped(Leaf(path, place, "[]"), "an empty list sets nothing"))

    def _enter_oneof(self, message: Message, known: Field, place: TextLine) -> None:
        """Remove the other members of the field's oneof."""
        members = message_types()[message.type].members(known.oneof) if known.oneof else ()
        for name in members:
            if name != known.name and name in message.values:
                reason = f"replaced by {known.name} at {place}"
                self._root.dropped += [Dropped(leaf, reason) for leaf in field_leaves(message, name)]
                del message.values[name]

    # --- values -------------------------------------------------------------------------------------------------------

    def _scalars(self, message: Message, known: Field, place: TextLine) -> None:
        self._enter_oneof(message, known, place)
        if known.repeated:
            is_list = self._tokens.LookingAt("[")
            for _ in self._list(message, known.name, place) if is_list else (None,):
                item = self._scalar(message, known, None)
                message.values.setdefault(known.name, []).append(item)
            return
        value = self._scalar(message, known, place)
        for old in message.values.get(known.name, []):
            assert isinstance(old, Scalar)
            leaf = leaf_of(message.below(known.name), old.place, old.text)
            self._root.dropped.append(Dropped(leaf, f"overwritten at {place}"))
        message.values[known.name] = [value]

    def _scalar(self, message: Message, known: Field, place: TextLine | None) -> Scalar:
        """Take a value; without `place`, use the place of the value."""
        self._count(message.below(known.name))
        word = self._tokens.token
        try:
            value = self._value(known, word)
        except (self._error, ValueError):
            hint = nearest_hint(word, enum_values(known.type)) if known.kind == "enum" else ""
            allowed = f"{_ALLOWED.get(known.kind) or ', '.join(enum_values(known.type))}.{hint}"
            self._fail(message.below(known.name), f"{self._got(word)}, allowed: {allowed}", place)
        text = json.dumps(value, ensure_ascii=False) if known.kind == "string" else word
        own_place = TextLine(self._name, self._tokens.ParseErrorPreviousToken("").GetLine())
        return Scalar(value, value if known.kind == "enum" else text, place or own_place)

    def _value(self, known: Field, word: str) -> Any:
        """Take a value.

        Raises:
            ParseError, ValueError: if it is not of the field's type.
        """
        if known.kind == "string":
            return self._tokens.ConsumeString()
        if len(word) > _MAX_NUMBER:
            raise ValueError
        if known.kind == "bool":
            return self._tokens.ConsumeBool()
        if known.kind == "enum":
            return self._enum(known, word)
        value = self._tokens.ConsumeFloat() if known.kind == "float" else self._tokens.ConsumeInteger()
        low, high = RANGES[known.kind]
        if not low <= value <= high and (known.kind != "float" or math.isfinite(value)):
            raise ValueError
        return value

    def _enum(self, known: Field, word: str) -> str:
        names = enum_values(known.type)
        if word in names:
            self._tokens.NextToken()
            return word
        number = self._tokens.ConsumeInteger()
        by_number = {each: name for name, each in names.items()}
        if number not in by_number:
            raise ValueError
        return by_number[number]


_ALLOWED = {
    "bool": "true or false",
    "float": "a number of 32 bits (at most 3.4e38)",
    "int32": f"a whole number from {RANGES['int32'][0]} to {RANGES['int32'][1]}",
    "uint32": f"a whole number from 0 to {RANGES['uint32'][1]}",
    "string": "UTF-8 text in quotes, on one line",
}


def _shown(known: MessageType) -> str:
    return "the file" if known.name == ROOT else known.name
