"""The elements of the top-level lists of a JSON object of any size, in bounded memory.

On the standard library's C decoder over a sliding window of text. Annotation files in the wild hold `NaN` and
`Infinity`; Python's decoder reads them as floats, so that the one box at fault can be refused. ijson, the usual library
for this, stops at them and loses the file.
"""

import codecs
import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from detloom.components.example_gen.sources.json_values import name_type
from detloom.schemas.errors import InputError

_STEP = 1 << 20  # bytes read at a time; ten times less costs measurably more, ten times more wins nothing
# Longer than any token that does not name its start when it is cut ("-Infinity", two \uXXXX escapes): an error further
# from the end of the window is no matter of more text.
_CUT_MARGIN = 16
_MAX_KEY_CHARS = 1000
_SPACE = re.compile(r"[ \t\n\r]*")
_SCALAR_END = re.compile(r"[\s,\]}]")
_PLAIN = re.compile(r'[^"\[\]{}]+')
_OPENING = re.compile(r"[\[{]+")
_CLOSING = re.compile(r"[\]}]+")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class UnreadableElement:
    """Stands for an element that was passed over: larger than allowed, nested too deeply, a number too long."""

    detail: str


def stream_lists(
    file: BinaryIO, where: str, keys: Collection[str], max_element_bytes: int
) -> Iterator[tuple[str, int, Any]]:
    """Key, index and element, for the elements of the lists `keys` of the object that the file holds.

    In the order of the file; other keys are passed over whatever their size. An element that cannot be read on its own
    is an `UnreadableElement`; sizes are counted in characters.

    Raises:
        InputError: naming file and line, if the file is no JSON object in UTF-8, or lacks one of the lists, or has one
            twice. What comes before the damage has been yielded by then.
    """
    window = _Window(file, where)
    first = window.peek()
    if first != "{":
        kind = window.name_next() if first else "an empty file"
        raise InputError(f"{where}:{window.line}: the top level must be an object, got {kind}.")
    window.pos += 1
    seen: set[str] = set()
    more = window.peek() != "}"
    while more:
        key = window.read_key()
        window.expect(":", "a ':'")
        if key not in keys:
            window.skip_value()
        elif key in seen:
            raise window.error(f"{key!r} stands twice")
        else:
            seen.add(key)
            if window.peek() != "[":
                raise InputError(f"{where}:{window.line}: {key!r} must be a list, got {window.name_next()}.")
            yield from _elements(window, key, max_element_bytes)
        more = window.expect(",}", "a ',' or a '}'") == ","
    window.pos += 1
    if window.peek():
        raise window.error("more text after the end of the object")
    for key in keys:
        if key not in seen:
            raise InputError(f"{where}: {key!r} must be a list, got nothing.")


def _elements(window: "_Window", key: str, max_chars: int) -> Iterator[tuple[str, int, Any]]:
    window.pos += 1
    index = 0
    if window.peek() == "]":
        window.pos += 1
        return
    while True:
        yield key, index, window.read_value(max_chars)
        index += 1
        if window.expect(",]", "a ',' or a ']'") == "]":
            return


class _Window:
    """A part of the text, and the position in it of what comes next."""

    def __init__(self, file: BinaryIO, where: str) -> None:
        self.text = ""
        self.pos = 0
        self._file = file
        self._where = where
        self._lines_before = 0
        self._at_end = False
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()

    @property
    def line(self) -> int:
        """Of what comes next."""
        return self._lines_before + self.text.count("\n", 0, self.pos) + 1

    def error(self, reason: str, pos: int | None = None) -> InputError:
        pos = self.pos if pos is None else pos
        line = self._lines_before + self.text.count("\n", 0, pos) + 1
        return InputError(f"{self._where}:{line}: not readable as JSON ({reason}).")

    def peek(self) -> str:
        """The next character that is no space, without taking it; "" at the end of the file."""
        while True:
            match = _SPACE.match(self.text, self.pos)
            assert match is not None  # it may be empty
            self.pos = match.end()
            if self.pos < len(self.text):
                return self.text[self.pos]
            if not self._read_more():
                return ""

    def expect(self, allowed: str, in_words: str) -> str:
        """Take one of the characters `allowed`; a last '}' is left, so that whoever took it knows where it stood."""
        char = self.peek()
        if not char or char not in allowed:
            raise self.error(f"got {char!r}, expected {in_words}" if char else f"it ends where {in_words} must stand")
        if char != "}":
            self.pos += 1
        return char

    def name_next(self) -> str:
        """What comes next, in words."""
        char = self.peek()
        return {"{": "an object", "[": "a list", '"': "text"}.get(char) or name_type(self.read_value(_MAX_KEY_CHARS))

    def read_key(self) -> str:
        if self.peek() != '"':
            raise self.error("expected a key in double quotes")
        key = self.read_value(_MAX_KEY_CHARS)
        return key if isinstance(key, str) else ""

    def read_value(self, max_chars: int) -> Any:
        """The next value, or an `UnreadableElement` where it was passed over."""
        first = self.peek()
        is_scalar = first not in ("{", "[", '"')
        while True:
            if not is_scalar or self._at_end or _SCALAR_END.search(self.text, self.pos):
                try:
                    value, end = _DECODER.raw_decode(self.text, self.pos)
                except json.JSONDecodeError as error:
                    is_cut = error.msg.startswith("Unterminated") or error.pos >= len(self.text) - _CUT_MARGIN
                    if self._at_end or not is_cut:
                        raise self.error(error.msg.removesuffix(" at"), error.pos) from None
                except RecursionError:
                    return self._skip("it is nested too deeply")
                except ValueError:  # of int(), which reads 4,300 digits at most
                    return self._skip("it holds a number of too many digits")
                else:
                    if end - self.pos > max_chars:
                        self.pos = end
                        return _too_large(max_chars)
                    self.pos = end
                    return value
            if len(self.text) - self.pos > max_chars:
                self.skip_value()
                return _too_large(max_chars)
            self._read_more()

    def skip_value(self) -> None:
        """Pass over the next value; of its structure only quotes and the number of brackets are looked at."""
        char = self.peek()
        if not char:
            raise self.error("it ends where a value must stand")
        if char == '"':
            self._skip_string()
            return
        if char not in "{[":
            self._skip_scalar()
            return
        depth = 0
        while True:
            char = self.peek()
            if not char:
                raise self.error("it ends within a value")
            if char == '"':
                self._skip_string()
                continue
            pattern = _OPENING if char in "{[" else _CLOSING if char in "}]" else _PLAIN
            match = pattern.match(self.text, self.pos)
            assert match is not None  # by its first character
            self.pos = match.end()
            if pattern is _OPENING:
                depth += len(match.group())
            elif pattern is _CLOSING:
                surplus = len(match.group()) - depth
                if surplus >= 0:
                    self.pos -= surplus
                    return
                depth = -surplus

    def _skip(self, detail: str) -> UnreadableElement:
        self.skip_value()
        return UnreadableElement(detail)

    def _skip_scalar(self) -> None:
        if self.text[self.pos] in ",:]}":
            raise self.error(f"got {self.text[self.pos]!r}, expected a value")
        while True:
            match = _SCALAR_END.search(self.text, self.pos)
            self.pos = match.start() if match else len(self.text)
            if match or not self._read_more():
                return

    def _skip_string(self) -> None:
        self.pos += 1
        while True:
            quote = self.text.find('"', self.pos)
            end = quote if quote >= 0 else len(self.text)
            piece = self.text[self.pos : end]
            is_escaped = (len(piece) - len(piece.rstrip("\\"))) % 2 == 1
            if quote >= 0:
                self.pos = quote + 1
                if not is_escaped:
                    return
                continue
            self.pos = end - is_escaped  # the backslash stays in the window with what it escapes
            if not self._read_more():
                raise self.error("it ends within text")

    def _read_more(self) -> bool:
        """Drop what was taken and add at least as much as is left; False at the end of the file."""
        if self._at_end:
            return False
        self._lines_before += self.text.count("\n", 0, self.pos)
        rest = self.text[self.pos :]
        try:
            data = self._file.read(max(_STEP, len(rest)))
            self._at_end = not data
            self.text, self.pos = rest + self._decoder.decode(data, final=self._at_end), 0
        except UnicodeDecodeError as error:
            line = self._lines_before + rest.count("\n") + error.object.count(b"\n", 0, error.start) + 1
            byte = error.object[error.start]
            raise InputError(f"{self._where}:{line}: cannot be read (not UTF-8: byte {byte:#04x}).") from None
        except OSError as error:
            raise InputError(f"{self._where}: cannot be read ({error.strerror or error}).") from None
        return not self._at_end


def _too_large(max_chars: int) -> UnreadableElement:
    return UnreadableElement(f"it is larger than the {max_chars} bytes allowed")
