"""Text of a `pipeline.config` to a tree of messages that knows the line of every value.

Words are cut by protobuf's own tokenizer. What a text means is what `text_format.Merge` makes of it, as the Object
Detection API reads its files: of a value given twice the last counts, messages are merged, repeated fields appended,
and a member of a oneof replaces the other member.
"""

import json
import math
import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from detloom.schemas.errors import InputError
from detloom.schemas.odapi.fields import OVERRIDES, RANGES, ROOT, Field, MessageType, enum_values, message_types
from detloom.schemas.redact import HIDDEN, is_secret, redact
from detloom.schemas.typed_dict import nearest_hint

MAX_DEPTH = 64  # messages in messages; the format's own deepest path has 10
_MAX_NUMBER = 1000  # characters; Python needs quadratic time for the digits of a whole number
_MAX_VALUES = 10_000  # in a text; the zoo's largest has some hundred
_MAX_PATH = 300  # characters; the format's own longest path has 153
_MAX_EXTENSION_NAME = 200
_NAME = re.compile(r"[A-Za-z_]\w*")
_EXTENSION_NAME = re.compile(r"\[[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_CLOSING = {"{": "}", "<": ">"}


class Place(NamedTuple):
    """A line of a file or of an override text."""

    name: str
    line: int

    def __str__(self) -> str:
        return f"{self.name}:{self.line}"


@dataclass(frozen=True)
class Scalar:
    """A single value, and how it was written; enums by name."""

    value: Any
    text: str
    place: Place


@dataclass
class Message:
    """A message as far as it was written.

    Attributes:
        type: name of the message; "" in an extension that is not known here.
        path: names of the fields that lead to it, with dots between; "" for the root.
        values: by field; of a field that is not repeated, one.
        dropped: values that others replaced, in this message and below; filled in the root only.
    """

    type: str
    path: str
    place: Place
    values: dict[str, list["Scalar | Message"]] = field(default_factory=dict)
    dropped: list["Dropped"] = field(default_factory=list)

    def scalar(self, name: str) -> Any:
        """The value of a field that is not repeated; its default where it was not written."""
        found = self.values.get(name)
        if not found:
            return message_types()[self.type].fields[name].default
        assert isinstance(found[0], Scalar)
        return found[0].value

    def below(self, name: str) -> str:
        """Path of a field."""
        return f"{self.path}.{name}" if self.path else name


class Leaf(NamedTuple):
    """What was written for one field: a value, all values of a repeated field, or an empty message."""

    path: str
    place: Place
    text: str


class Dropped(NamedTuple):
    """A value that was written but does not count."""

    leaf: Leaf
    reason: str


def leaf_of(path: str, place: Place, text: str) -> Leaf:
    """What was written, short and without what may be a secret."""
    return Leaf(path, place, HIDDEN if is_secret(path) else redact(text))


def field_leaves(message: Message, name: str) -> Iterator[Leaf]:
    """All that was written for a field of a message, and below it."""
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
    """All that was written in a message; an empty one counts itself."""
    if not message.values and message.path:
        yield Leaf(message.path, message.place, "{}")
    for name in message.values:
        yield from field_leaves(message, name)


def new_root(name: str) -> Message:
    """A file in which nothing is written yet."""
    return Message(ROOT, "", Place(name, 1))


def merge_text(root: Message, text: str, name: str) -> None:
    """Merge a text into what was read before.

    Raises:
        InputError: with file and line, if this is not the format, a field is unknown or of another type, or there are
            more values than a configuration has.
    """
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise InputError(f"{Place(name, line)}: got a NUL character, allowed: a text file.")
    _Parser(root, text, name).parse()


class _Parser:
    def __init__(self, root: Message, text: str, name: str) -> None:
        from google.protobuf import text_format  # here, because importing it takes a tenth of a second

        self._error = text_format.ParseError
        lines = text.split("\n")
        self._tokens = text_format.Tokenizer(lines)
        self._last_line = max((i for i, line in enumerate(lines, start=1) if line.strip()), default=1)
        self._root, self._name, self._num_values = root, name, 0

    def parse(self) -> None:
        while not self._tokens.AtEnd():
            self._field(self._root, 0)

    # --- words --------------------------------------------------------------------------------------------------------

    def _take(self) -> tuple[str, Place]:
        """The next word and its place."""
        word = self._tokens.token
        self._tokens.NextToken()
        # Only with `ParseErrorPreviousToken` the tokenizer tells a line without copying the text around it.
        return word, Place(self._name, self._tokens.ParseErrorPreviousToken("").GetLine())

    def _fail(self, path: str, message: str, place: Place | None = None) -> typing.NoReturn:
        line = min(self._tokens.ParseError("").GetLine(), self._last_line)
        raise InputError(f"{place or Place(self._name, line)}: {path}{': ' if path else ''}{message}")

    def _got(self, word: str | None = None) -> str:
        word = self._tokens.token if word is None else word
        return f"got {redact(repr(word))}" if word else "got the end of the text"

    def _count(self, path: str) -> None:
        """Called for every value and message, so that a hostile file ends soon and is a short report."""
        self._num_values += 1
        if self._num_values > _MAX_VALUES:
            self._fail(path, f"got more than {_MAX_VALUES} values in this text, allowed: at most {_MAX_VALUES}.")

    # --- fields -------------------------------------------------------------------------------------------------------

    def _field(self, message: Message, depth: int) -> None:
        name, place = self._field_name(message)
        if len(message.below(name)) > _MAX_PATH:
            allowed = f"at most {_MAX_PATH} characters with the names of the messages around it"
            self._fail("", f"got the name {redact(repr(name))}, allowed: {allowed}.", place)
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
        if not self._tokens.TryConsume(","):
            self._tokens.TryConsume(";")

    def _field_name(self, message: Message) -> tuple[str, Place]:
        if self._tokens.LookingAt("["):
            return self._extension_name(message)
        if not _NAME.fullmatch(self._tokens.token):
            self._fail(message.path, f"{self._got()}, allowed: the name of a field{self._unclosed(message)}.")
        return self._take()

    def _unclosed(self, message: Message) -> str:
        return f", or the end of the message from {message.place}" if message.path else ""

    def _extension_name(self, message: Message) -> tuple[str, Place]:
        name, place = self._take()
        while self._tokens.token not in ("]", "") and len(name) < _MAX_EXTENSION_NAME:
            name += self._take()[0]
        if self._tokens.LookingAt("]") and not _EXTENSION_NAME.fullmatch(name):
            allowed = f"the name of an extension, such as {OVERRIDES}"
            self._fail(message.path, f"got {redact(repr(name + ']'))}, allowed: {allowed}.", place)
        if not self._tokens.TryConsume("]"):
            self._fail(message.path, f"{self._got()}, allowed: ']' after the name of an extension.")
        return name + "]", place

    def _find_field(self, message: Message, name: str, place: Place) -> Field | None:
        """The field's description; None within extensions that are not known here."""
        if not message.type:
            return None
        known = message_types()[message.type]
        if name.startswith("["):
            if not known.extensible:
                self._fail(message.below(name), f"{known.name} takes no extensions.", place)
            if name == OVERRIDES and known.name == ROOT:
                return Field(0, name, False, "message", OVERRIDES, None, "", False)
            return None
        if name not in known.fields:
            hint = nearest_hint(name, known.fields) or f" Its fields: {', '.join(known.fields) or 'none'}."
            self._fail(message.below(name), f"unknown field of {_shown(known)}.{hint}", place)
        return known.fields[name]

    # --- messages -----------------------------------------------------------------------------------------------------

    def _messages(self, parent: Message, known: Field, place: Place, depth: int) -> None:
        self._enter_oneof(parent, known, place)
        if not (known.repeated and self._tokens.LookingAt("[")):
            self._message(parent, known, place, depth)
            return
        for _ in self._list(parent, known.name, place):
            self._message(parent, known, None, depth)

    def _message(self, parent: Message, known: Field, place: Place | None, depth: int) -> None:
        found = parent.values.setdefault(known.name, [])
        path = parent.below(f"{known.name}[{len(found)}]" if known.repeated else known.name)
        self._count(path)
        opening, place_of_opening = self._opening(path)
        if known.repeated or not found:
            found.append(Message(known.type, path, place or place_of_opening))
        message = found[-1]
        assert isinstance(message, Message)
        self._body(message, opening, place_of_opening, depth + 1)

    def _opening(self, path: str) -> tuple[str, Place]:
        if self._tokens.token not in _CLOSING:
            self._fail(path, f"{self._got()}, allowed: '{{'.")
        return self._take()

    def _body(self, message: Message, opening: str, place: Place, depth: int) -> None:
        if depth > MAX_DEPTH:
            self._fail("", f"got more than {MAX_DEPTH} messages in each other, allowed: at most {MAX_DEPTH}.", place)
        closing = _CLOSING[opening]
        while not self._tokens.TryConsume(closing):
            if self._tokens.AtEnd():
                self._fail(message.path, f"{self._got()}, allowed: '{closing}' to close the message from {place}.")
            self._field(message, depth)

    def _list(self, parent: Message, name: str, place: Place) -> Iterator[None]:
        """Once for each item of a list, which the caller takes before it asks for the next."""
        self._take()
        if self._tokens.TryConsume("]"):
            leaf = Leaf(parent.below(name), place, "[]")
            self._root.dropped.append(Dropped(leaf, "an empty list sets nothing"))
            return
        while True:
            yield
            if self._tokens.TryConsume("]"):
                return
            if not self._tokens.TryConsume(","):
                self._fail(parent.below(name), f"{self._got()}, allowed: ',' or ']'.")

    def _enter_oneof(self, message: Message, known: Field, place: Place) -> None:
        """Drop the other members of the field's oneof."""
        for name in message_types()[message.type].members(known.oneof) if known.oneof else ():
            if name != known.name and name in message.values:
                reason = f"replaced by {known.name} at {place}"
                self._root.dropped += [Dropped(leaf, reason) for leaf in field_leaves(message, name)]
                del message.values[name]

    # --- values -------------------------------------------------------------------------------------------------------

    def _scalars(self, message: Message, known: Field, place: Place) -> None:
        self._enter_oneof(message, known, place)
        if known.repeated:
            for _ in self._list(message, known.name, place) if self._tokens.LookingAt("[") else (None,):
                item = self._scalar(message, known, None)
                message.values.setdefault(known.name, []).append(item)
            return
        value = self._scalar(message, known, place)
        for old in message.values.get(known.name, []):
            assert isinstance(old, Scalar)
            leaf = leaf_of(message.below(known.name), old.place, old.text)
            self._root.dropped.append(Dropped(leaf, f"overwritten at {place}"))
        message.values[known.name] = [value]

    def _scalar(self, message: Message, known: Field, place: Place | None) -> Scalar:
        """Take a value; without a place, it gets its own."""
        self._count(message.below(known.name))
        word = self._tokens.token
        try:
            value = self._value(known, word)
        except (self._error, ValueError):
            hint = nearest_hint(word, enum_values(known.type)) if known.kind == "enum" else ""
            allowed = f"{_ALLOWED.get(known.kind) or ', '.join(enum_values(known.type))}.{hint}"
            self._fail(message.below(known.name), f"{self._got(word)}, allowed: {allowed}", place)
        text = json.dumps(value, ensure_ascii=False) if known.kind == "string" else word
        own_place = Place(self._name, self._tokens.ParseErrorPreviousToken("").GetLine())
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

    # --- extensions that are not known here ---------------------------------------------------------------------------

    def _untyped_field(self, parent: Message, name: str, place: Place, depth: int) -> None:
        has_colon = self._tokens.TryConsume(":")
        if self._tokens.LookingAt("["):
            for _ in self._list(parent, name, place):
                self._untyped_value(parent, name, place, depth)
        elif has_colon or self._tokens.token in _CLOSING:
            self._untyped_value(parent, name, place, depth)
        else:
            self._fail(parent.below(name), f"{self._got()}, allowed: ':' and a value, or '{{'.")

    def _untyped_value(self, parent: Message, name: str, place: Place, depth: int) -> None:
        self._count(parent.below(name))
        values = parent.values.setdefault(name, [])
        if self._tokens.token in _CLOSING:
            number = f"[{len(values)}]" if values else ""
            message = Message("", parent.below(name + number), place)
            values.append(message)
            self._body(message, *self._take(), depth + 1)
        elif re.match(r"[\w.+'\"-]", self._tokens.token):
            is_text = self._tokens.token[0] in "'\""
            try:
                word = json.dumps(self._tokens.ConsumeString(), ensure_ascii=False) if is_text else self._take()[0]
            except self._error:
                self._fail(parent.below(name), f"{self._got()}, allowed: text in quotes.", place)
            values.append(Scalar(word, word, place))
        else:
            self._fail(parent.below(name), f"{self._got()}, allowed: a value.")


_ALLOWED = {
    "bool": "true or false",
    "float": "a number (at most 3.4e38, which 32 bits hold)",
    "int32": f"a whole number from {RANGES['int32'][0]} to {RANGES['int32'][1]}",
    "uint32": f"a whole number from 0 to {RANGES['uint32'][1]}",
    "string": "UTF-8 text in quotes that end on the same line",
}


def _shown(known: MessageType) -> str:
    return "the file" if known.name == ROOT else known.name
