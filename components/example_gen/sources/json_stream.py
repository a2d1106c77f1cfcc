"""Stream the elements of the lists and objects at the top of a JSON file of any size, in bounded memory.

It runs the standard library's C decoder over a sliding window of text. Real annotation files contain `NaN` and
`Infinity`; Python's decoder reads them as floats, so that only the affected box is rejected. ijson, the usual library,
stops at them and loses the file.
"""

import codecs
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from detloom.components.example_gen.sources.json_values import name_type, show
from detloom.schemas.errors import InputError

_STEP = 1 << 20  # bytes per read; a tenth of it is measurably slower, ten times as much is not faster
# Longer than any token except a string that can be cut ("-Infinity", two \uXXXX escapes): an error further from the
# window's end, and not at the start of a cut string, does not go away with more text.
_CUT_MARGIN = 16
_MAX_KEY_CHARS = 1000
_SPACE = re.compile(r"[ \t\n\r]*")
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_SCALAR_END = re.compile(r"[\s,\]}]")
_PLAIN = re.compile(r'[^"\[\]{}]+')
_OPENING = re.compile(r"[\[{]+")
_CLOSING = re.compile(r"[\]}]+")


class _RepeatedKeyError(ValueError):
    """A key occurs twice in one object; Python's decoder would take the last value."""


def _to_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise _RepeatedKeyError(next(name for name, count in counts.items() if count > 1))
    return values


_DECODER = json.JSONDecoder(object_pairs_hook=_to_dict)


@dataclass(frozen=True, slots=True)
class UnreadableElement:
    """A placeholder for a skipped element: too large, nested too deeply, with a repeated key or too long a number."""

    detail: str


def stream_lists(
    file: BinaryIO, where: str, keys: Collection[str], max_element_bytes: int
) -> Iterator[tuple[str, int, Any]]:
    """Yield key, index and element of the lists `keys` of the JSON object in a file, in file order.

    Other keys are skipped, whatever their size. An element that cannot be read is an `UnreadableElement`; sizes are
    counted in characters.

    Raises:
        InputError: naming file and line, if the file is not a JSON object in UTF-8, or a list is missing or repeated.
            Everything before the damage has been yielded by then.
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
            raise window.error(f"{key!r} occurs twice")
        else:
            seen.add(key)
            if window.peek() != "[":
                raise InputError(f"{where}:{window.line}: {key!r} must be a list, got {window.name_next()}.")
            for index, element in _members(window, max_element_bytes):
                yield key, int(index), element
        more = window.expect(",}", "a ',' or a '}'") == ","
    window.pos += 1
    window.check_end()
    for key in keys:
        if key not in seen:
            raise InputError(f"{where}: {key!r} must be a list, got nothing.")


def stream_members(
    file: BinaryIO, where: str, max_element_bytes: int, inside: str = ""
) -> Iterator[tuple[str | int, Any]]:
    """Yield index and element of the list in a JSON file, or key and value of its object, in file order.

    The value of the key `inside` is replaced by its own members if it is an object. Repeated keys are repeated. An
    element that cannot be read is an `UnreadableElement`.

    Raises:
        InputError: naming file and line, if the file is neither list nor object in UTF-8; all before it was yielded.
    """
    window = _Window(file, where)
    first = window.peek()
    if not first or first not in "[{":
        kind = window.name_next() if first else "an empty file"
        raise InputError(f"{where}:{window.line}: the top level must be a list or an object, got {kind}.")
    yield from _members(window, max_element_bytes, inside)
    window.check_end()


def _members(window: "_Window", max_chars: int, inside: str = "") -> Iterator[tuple[str | int, Any]]:
    closing = "]" if window.peek() == "[" else "}"
    window.pos += 1
    index = 0
    more = window.peek() != closing
    while more:
        name: str | int = index
        if closing == "}":
            name = window.read_key()
            window.expect(":", "a ':'")
        if name == inside and window.peek() == "{":
            yield from _members(window, max_chars)
        else:
            yield name, window.read_value(max_chars)
        index += 1
        more = window.expect(f",{closing}", f"a ',' or a '{closing}'") == ","
    window.pos += index == 0 or closing == "}"  # `expect` has consumed a "]"


class _Window:
    """A part of the text, and the current position in it."""

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
        """Return the line number of the current position."""
        return self._lines_before + self.text.count("\n", 0, self.pos) + 1

    def error(self, reason: str, pos: int | None = None) -> InputError:
        pos = self.pos if pos is None else pos
        line = self._lines_before + self.text.count("\n", 0, pos) + 1
        return InputError(f"{self._where}:{line}: not readable as JSON ({reason}).")

    def peek(self) -> str:
        """Return the next character that is not a space, without consuming it; "" at the end of the file."""
        while True:
            match = _SPACE.match(self.text, self.pos)
            assert match is not None  # the match may be empty
            self.pos = match.end()
            if self.pos < len(self.text):
                return self.text[self.pos]
            if not self._read_more():
                return ""

    def expect(self, allowed: str, in_words: str) -> str:
        """Consume one of the characters `allowed`, except a '}', whose position the caller needs."""
        char = self.peek()
        if not char or char not in allowed:
            raise self.error(f"got {char!r}, expected {in_words}" if char else f"file ends, expected {in_words}")
        if char != "}":
            self.pos += 1
        return char

    def check_end(self) -> None:
        if self.peek():
            raise self.error("more text after the end")

    def name_next(self) -> str:
        """Describe the next value in words."""
        char = self.peek()
        return {"{": "an object", "[": "a list", '"': "text"}.get(char) or name_type(self.read_value(_MAX_KEY_CHARS))

    def read_key(self) -> str:
        if self.peek() != '"':
            raise self.error("expected a key in double quotes")
        key = self.read_value(_MAX_KEY_CHARS)
        return key if isinstance(key, str) else ""

    def read_value(self, max_chars: int) -> Any:
        """Return the next value, or an `UnreadableElement` if it was skipped."""
        first = self.peek()
        is_scalar = first not in ("{", "[", '"')
        while True:
            if not is_scalar or self._at_end or _SCALAR_END.search(self.text, self.pos):
                try:
                    value, end = _DECODER.raw_decode(self.text, self.pos)
                except json.JSONDecodeError as error:
                    if self._at_end or not self._is_cut(error.pos):
                        raise self.error(error.msg.removesuffix(" at"), error.pos) from None
                except RecursionError:
                    return self._skip("it is nested too deeply")
                except _RepeatedKeyError as error:
                    return self._skip(f"it contains the key {show(str(error))} twice")
                except ValueError:  # from int(), which reads at most 4,300 digits
                    return self._skip("it contains a number with too many digits")
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

    def _is_cut(self, pos: int) -> bool:
        """Return True if an error at `pos` may be due to the end of the window. A cut string has it at its quote."""
        return pos >= len(self.text) - _CUT_MARGIN or (self.text[pos] == '"' and not _STRING.match(self.text, pos))

    def skip_value(self) -> None:
        """Skip the next value by looking only at quotes and the number of brackets."""
        char = self.peek()
        if not char:
            raise self.error("file ends, expected a value")
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
                raise self.error("file ends within a value")
            if char == '"':
                self._skip_string()
                continue
            pattern = _OPENING if char in "{[" else _CLOSING if char in "}]" else _PLAIN
            match = pattern.match(self.text, self.pos)
            assert match is not None  # true for its first character
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
            self.pos = end - is_escaped  # keep the backslash in the window with the character that it escapes
            if not self._read_more():
                raise self.error("file ends within a string")

    def _read_more(self) -> bool:
        """Drop the consumed text and read at least as much as is left; return False at the end of the file."""
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
