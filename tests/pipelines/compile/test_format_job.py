import json

import pytest
import yaml

from detloom.pipelines.compile.format_job import format_json, format_yaml

# All of them are texts; without quotes, YAML 1.1 or 1.2 reads something else.
ODD = [
    "12345678e0123456",
    "1e3",
    "0o17",
    "0x1f",
    "true",
    "no",
    "y",
    "null",
    "~",
    "",
    "- a",
    "a: b",
    "a #b",
    ".inf",
    "1:30",
]


def test_documents_are_sorted_and_divided():
    assert format_yaml([{"root": 1, "dag": [2.0]}, {"platforms": {}}]) == "dag:\n- 2.0\nroot: 1\n---\nplatforms: {}\n"


@pytest.mark.parametrize("text", ODD)
def test_a_text_that_looks_like_something_else_is_quoted(text):
    written = format_yaml([{"key": text}])
    assert written.startswith(("key: '", 'key: "'))
    assert yaml.safe_load(written) == {"key": text}


@pytest.mark.parametrize("text", ["line\nline", "tab\t", "emoji \U0001f600", "'", '"', "{{$}}", "x" * 5000 + " y"])
def test_every_text_is_read_as_it_was(text):
    assert yaml.safe_load(format_yaml([{text: text}])) == {text: text}


def test_what_two_places_share_is_written_twice():
    shared = {"a": "b"}
    assert "&" not in format_yaml([{"one": shared, "two": shared}])


def test_json_is_sorted_and_ends_with_a_line():
    text = format_json({"b": 1, "a": {"d": 2, "c": "\u00e9"}})
    assert text == '{\n "a": {\n  "c": "\\u00e9",\n  "d": 2\n },\n "b": 1\n}\n'
    assert json.loads(text) == {"a": {"c": "\u00e9", "d": 2}, "b": 1}
