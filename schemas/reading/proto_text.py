"""Parse protobuf's text format to a tree that stores the line of every value, with bounds against hostile texts.

Protobuf's tokenizer splits the text. The parser needs no message types; a subclass can add them.
"""

import json
import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import redact

MAX_DEPTH = 64  # nested messages; the deepest path of a pipeline.config has 10
_MAX_PATH = 300  # characters; the longest path of a pipeline.config has 153
_MAX_EXTENSION_NAME = 200
_NAME = re.compile(r"[A-Za-z_]\w*")
_EXTENSION_NAME = re.compile(r"\[[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
CLOSING = {"{": "}", "<": ">"}


class TextLine(NamedTuple):
    """A line of a file or of an override text."""

    name: str
    line: int

    def __str__(self) -> str:
        return f"{self.name}:{self.line}"


@dataclass(frozen=True)
class Scalar:
    """A single value and its text; enums by name."""

    value: Any
    text: str
    place: TextLine


@dataclass
class Message:
    """The written part of a message.

    Attributes:
        type: name of the message type; "" for a message without a type.
        path: dotted names of the fields that lead to the message; "" for the root.
        values: values by field.
    """

    type: str
    path: str
    place: TextLine
    values: dict[str, list[Any]] = field(default_factory=dict)  # of Scalar and of messages

    def below(self, name: str) -> str:
        """Return the path of a field."""
        return f"{self.path}.{name}" if self.path else name


M = TypeVar("M", bound=Message)


def parse_text(text: str, name: str, *, max_values: int) -> Message:
    """Parse a text without message types; each value is a string.

    Raises:
        InputError: with file and line, if the syntax is invalid or there are too many values.
    """
    root = Message("", "", TextLine(name, 1))
    TextParser(root, text, name, max_values).parse()
    return root


class TextParser(Generic[M]):
    """A parser that adds the fields of a text to `root`."""

    def __init__(self, root: M, text: str, name: str, max_values: int) -> None:
        from google.protobuf import text_format  # a local import, because it takes 0.1 s

        if "\0" in text:
            line = text[: text.index("\0")].count("\n") + 1
            raise InputError(f"{TextLine(name, line)}: got a NUL character, allowed: a text file.")
        self._error = text_format.ParseError
        lines = text.split("\n")
        self._tokens = text_format.Tokenizer(lines)
        self._last_line = max((i for i, line in enumerate(lines, start=1) if line.strip()), default=1)
        self._root, self._name, self._num_values, self._max_values = root, name, 0, max_values

    def parse(self) -> None:
        while not self._tokens.AtEnd():
            self._field(self._root, 0)

    # --- words --------------------------------------------------------------------------------------------------------

    def _take(self) -> tuple[str, TextLine]:
        """Take the next word; return it with its place."""
        word = self._tokens.token
        self._tokens.NextToken()
        # `ParseErrorPreviousToken` is the only method that returns a line without copying the text around it.
        return word, TextLine(self._name, self._tokens.ParseErrorPreviousToken("").GetLine())

    def _fail(self, path: str, message: str, place: TextLine | None = None) -> typing.NoReturn:
        line = min(self._tokens.ParseError("").GetLine(), self._last_line)
        raise InputError(f"{place or TextLine(self._name, line)}: {path}{': ' if path else ''}{message}")

    def _got(self, word: str | None = None) -> str:
        word = self._tokens.token if word is None else word
        return f"got {redact(repr(word))}" if word else "got the end of the text"

    def _count(self, path: str) -> None:
        """Count a value or a message; limit their number, so that a hostile file fails early."""
        self._num_values += 1
        if self._num_values > self._max_values:
            self._fail(
                path, f"got more than {self._max_values} values in this text, allowed: at most {self._max_values}."
            )

    # --- fields -------------------------------------------------------------------------------------------------------

    def _field(self, message: M, depth: int) -> None:
        name, place = self._field_name(message)
        if len(message.below(name)) > _MAX_PATH:
            allowed = f"at most {_MAX_PATH} characters together with the names of the enclosing messages"
            self._fail("", f"got the name {redact(repr(name))}, allowed: {allowed}.", place)
        self._field_value(message, name, place, depth)
        if not self._tokens.TryConsume(","):
            self._tokens.TryConsume(";")

    def _field_value(self, message: M, name: str, place: TextLine, depth: int) -> None:
        """Take the value of a field; a subclass can use the field's type."""
        self._untyped_field(message, name, place, depth)

    def _field_name(self, message: M) -> tuple[str, TextLine]:
        if self._tokens.LookingAt("["):
            return self._extension_name(message)
        if not _NAME.fullmatch(self._tokens.token):
            self._fail(message.path, f"{self._got()}, allowed: the name of a field{self._unclosed(message)}.")
        return self._take()

    def _unclosed(self, message: M) -> str:
        return f", or the end of the message from {message.place}" if message.path else ""

    def _extension_name(self, message: M) -> tuple[str, TextLine]:
        name, place = self._take()
        while self._tokens.token not in ("]", "") and len(name) < _MAX_EXTENSION_NAME:
            name += self._take()[0]
        if self._tokens.LookingAt("]") and not _EXTENSION_NAME.fullmatch(name):
            allowed = "the name of an extension, such as [detloom.overrides]"
            self._fail(message.path, f"got {redact(repr(name + ']'))}, allowed: {allowed}.", place)
        if not self._tokens.TryConsume("]"):
            self._fail(message.path, f"{self._got()}, allowed: ']' after the name of an extension.")
        return name + "]", place

    # --- messages and lists -------------------------------------------------------------------------------------------

    def _opening(self, path: str) -> tuple[str, TextLine]:
        if self._tokens.token not in CLOSING:
            self._fail(path, f"{self._got()}, allowed: '{{'.")
        return self._take()

    def _body(self, message: M, opening: str, place: TextLine, depth: int) -> None:
        if depth > MAX_DEPTH:
            self._fail("", f"got more than {MAX_DEPTH} nested messages, allowed: at most {MAX_DEPTH}.", place)
        closing = CLOSING[opening]
        while not self._tokens.TryConsume(closing):
            if self._tokens.AtEnd():
                self._fail(message.path, f"{self._got()}, allowed: '{closing}' to close the message from {place}.")
            self._field(message, depth)

    def _list(self, parent: M, name: str, place: TextLine) -> Iterator[None]:
        """Yield once for each item of a list; the caller must take the item before it asks for the next one."""
        self._take()
        if self._tokens.TryConsume("]"):
            self._empty_list(parent.below(name), place)
            return
        while True:
            yield
            if self._tokens.TryConsume("]"):
                return
            if not self._tokens.TryConsume(","):
                self._fail(parent.below(name), f"{self._got()}, allowed: ',' or ']'.")

    def _empty_list(self, path: str, place: TextLine) -> None:
        """Handle an empty list; a subclass can report it."""

    # --- values without a type ----------------------------------------------------------------------------------------

    def _untyped_field(self, parent: M, name: str, place: TextLine, depth: int) -> None:
        has_colon = self._tokens.TryConsume(":")
        if self._tokens.LookingAt("["):
            for _ in self._list(parent, name, place):
                self._untyped_value(parent, name, place, depth)
        elif has_colon or self._tokens.token in CLOSING:
            self._untyped_value(parent, name, place, depth)
        else:
            self._fail(parent.below(name), f"{self._got()}, allowed: ':' and a value, or '{{'.")

    def _untyped_value(self, parent: M, name: str, place: TextLine, depth: int) -> None:
        self._count(parent.below(name))
        values = parent.values.setdefault(name, [])
        if self._tokens.token in CLOSING:
            number = f"[{len(values)}]" if values else ""
            message = type(parent)("", parent.below(name + number), place)
            values.append(message)
            self._body(message, *self._take(), depth + 1)
        elif re.match(r"[\w.+'\"-]", self._tokens.token):
            is_text = self._tokens.token[0] in "'\""
            try:
                value = self._tokens.ConsumeString() if is_text else self._take()[0]
            except self._error:
                self._fail(parent.below(name), f"{self._got()}, allowed: text in quotes.", place)
            values.append(Scalar(value, json.dumps(value, ensure_ascii=False) if is_text else value, place))
        else:
            self._fail(parent.below(name), f"{self._got()}, allowed: a value.")
