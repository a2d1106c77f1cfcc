"""Stream the lists of a JSON object: the elements of `json.loads` in bounded memory, or an error with its line."""

import io
import json
import math
import tracemalloc
from collections.abc import Iterator

import pytest

from detloom.components.example_gen.sources import json_stream
from detloom.components.example_gen.sources.json_stream import UnreadableElement, stream_lists
from detloom.schemas.errors import InputError

KIB_64 = 2**16


def stream(text, keys=("a",), max_bytes=1000):
    data = text if isinstance(text, bytes) else text.encode()
    return list(stream_lists(io.BytesIO(data), "f.json", keys, max_bytes))


class Generated(io.RawIOBase):
    """A file that is generated while it is read."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    def read(self, size=-1):
        return next(self._pieces, b"")


def test_elements_have_key_and_index_in_file_order():
    text = '{"b": [1, "x"], "info": {"y": [2]}, "a": [{"k": [true, null]}]}'
    assert stream(text, ("a", "b")) == [("b", 0, 1), ("b", 1, "x"), ("a", 0, {"k": [True, None]})]


def test_nan_and_infinity_are_floats():
    (_, _, element), *_ = stream('{"a": [[NaN, -Infinity, 1e999]]}')
    assert math.isnan(element[0])
    assert element[1:] == [-math.inf, math.inf]


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64])
def test_elements_do_not_depend_on_block_boundaries(monkeypatch, step):
    monkeypatch.setattr(json_stream, "_STEP", step)
    data = {
        'skip \\" é': {"x": ['a"b\\', {"y": "]}"}], "z": -1.5e-3},
        "a": [1, -2.5e10, 'é\U0001f600\\"', {"k": [[], {}, None, False]}, [], "\\\\", 'y\\"' * 40],
        "n": 12345,
    }
    for text in (json.dumps(data), json.dumps(data, ensure_ascii=False, indent=3)):
        assert [element for _, _, element in stream(text)] == data["a"]


def test_a_byte_order_mark_is_removed():
    assert stream(b'\xef\xbb\xbf{"a": [1]}') == [("a", 0, 1)]


def test_an_empty_list_has_no_elements():
    assert stream('{"a": [ ]}') == []


@pytest.mark.reliability("torn file", "ingest")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"f\.json:1: .*object, got an empty file\."),
        ("[1]", r"f\.json:1: .*object, got a list\."),
        ("12", r"f\.json:1: .*object, got 12\."),
        ('{"a": {}}', r"f\.json:1: 'a' .*list, got an object\."),
        ('{"b": [1]}', r"f\.json: 'a' .*list, got nothing\."),
        ('{"a": [1],\n\n"a": [2]}', r"f\.json:3: .*'a'"),
        ('{"a": [1,\n2 3]}', r"f\.json:2: .*got '3', expected"),
        ('{"a": [1,\n{"b": oops}]}', r"f\.json:2: .*Expecting value"),
        ('{"a": [1],}', r"f\.json:1: .*expected a key"),
        ('{"a": [1,]}', r"f\.json:1: .*Expecting value"),
        ('{"b": }', r"f\.json:1: .*expected a value"),
        ('{"a": [1]', r"f\.json:1: .*ends"),
        ('{"a": [{"b": 1', r"f\.json:1: .*JSON"),
        ('{"a": ["bc', r"f\.json:1: .*Unterminated string"),
        ('{"b": "c\\', r"f\.json:1: .*ends within"),
        ('{"b": [[1]', r"f\.json:1: .*ends within"),
        ('{"a": [1]} x', r"f\.json:1: .*after the end"),
        (b'{"a": [1,\n"\xff"]}', r"f\.json:2: .*UTF-8: byte 0xff"),
        (b'{"a": [1]}\xc3', r"f\.json:1: .*UTF-8"),
    ],
)
def test_a_damaged_file_is_an_error_with_its_line(text, message):
    with pytest.raises(InputError, match=message):
        stream(text)


@pytest.mark.parametrize(
    ("element", "detail"),
    [
        ('"' + "x" * 2000 + '"', "1000 bytes"),
        ("[" + "1," * 600 + "1]", "1000 bytes"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ('{"id": ' + "1" * 5000 + "}", "too many digits"),
        ('{"id": 1, "x": {"b": 1, "b": 2}}', "the key 'b' twice"),
    ],
)
def test_only_an_oversized_element_is_skipped(element, detail):
    found = stream('{"a": [0, ' + element + ", 2]}", max_bytes=10_000 if "digits" in detail else 1000)
    assert [index for _, index, _ in found] == [0, 1, 2]
    assert isinstance(found[1][2], UnreadableElement)
    assert detail in found[1][2].detail
    assert (found[0][2], found[2][2]) == (0, 2)


def test_a_repeated_key_is_found_in_one_pass():
    class CountedText(str):
        num_compared = 0
        __hash__ = str.__hash__

        def __eq__(self, other):
            CountedText.num_compared += 1
            return str.__eq__(self, other)

    pairs = [(CountedText(number), 0) for number in (*range(5000), 4999)]
    with pytest.raises(ValueError, match="4999"):
        json_stream._to_dict(pairs)
    assert CountedText.num_compared < 2 * len(pairs)


@pytest.mark.reliability("hostile input", "ingest")
@pytest.mark.parametrize(
    "middle",
    [b"x" * KIB_64, (b'\\"\\\\' + b"x" * 1020) * 64, b"[{" * (KIB_64 // 2), "é".encode() * (KIB_64 // 2)],
    ids=["text", "escapes", "brackets", "two-byte characters"],
)
@pytest.mark.parametrize("key", [b"a", b"other"])
def test_a_string_of_any_size_uses_bounded_memory(middle, key, monkeypatch):
    monkeypatch.setattr(json_stream, "_STEP", KIB_64)

    def pieces():
        yield b'{"' + key + b'": ["'
        for _ in range(48):
            yield middle
        yield b'", 7]' + (b"}" if key == b"a" else b', "a": [7]}')

    tracemalloc.start()
    found = list(stream_lists(Generated(pieces()), "f.json", ("a",), KIB_64))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found[-1][2] == 7
    # a window of 128 KiB, its copy while it slides, and at most four bytes per character
    assert peak < 24 * KIB_64


def test_a_long_list_uses_bounded_memory(monkeypatch):
    monkeypatch.setattr(json_stream, "_STEP", KIB_64)

    def pieces():
        yield b'{"a": ['
        for _ in range(20):
            yield (b'{"k": "' + b"v" * 182 + b'"},') * 1000
        yield b"1]}"

    tracemalloc.start()
    num = sum(1 for _ in stream_lists(Generated(pieces()), "f.json", ("a",), KIB_64))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert num == 20_001  # elements of 192 bytes
    assert peak < 16 * KIB_64
