from pathlib import Path

import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.reading.yaml_file import parse_yaml, read_yaml


def write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "run.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_every_key_has_its_line(tmp_path):
    data, locate = read_yaml(write(tmp_path, "a: 1\nb:\n  c: [x, 2.5]\n"))
    assert data == {"a": 1, "b": {"c": ["x", 2.5]}}
    assert locate(("b", "c")) == f"{tmp_path / 'run.yaml'}:3"
    assert locate(("b", "unknown")) == f"{tmp_path / 'run.yaml'}:2"


def test_a_date_is_text_without_quotes():
    assert parse_yaml("until: 2026-12-31", "run.yaml")[0] == {"until": "2026-12-31"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", r"run\.yaml:2: the key 'a' appears twice"),
        ("a: &x [1]\nb: *x\n", r"run\.yaml:1: YAML anchors and aliases"),
        ("a: [1, 2\n", r"run\.yaml:\d: not valid YAML"),
        ("a: !!python/object/apply:os.system ['true']\n", r"run\.yaml:1: got the YAML tag"),
        ("a: !!python/name:os.system ''\n", r"run\.yaml:1: got the YAML tag"),
        ("a: 1\nb: !!bool maybe\n", r"run\.yaml:2: got the YAML tag"),
        ("a: 1\nb: 010\n", r"run\.yaml:2: got 010, .* as 8, .* '010' in quotes"),
        ("a: [-07]\n", r"run\.yaml:1: got -07, .* as -7,"),
        ("a: 1:30\n", r"run\.yaml:1: got 1:30, .* as 90,"),
        ("a: 1:30.5\n", r"run\.yaml:1: got 1:30\.5, .* as 90\.5,"),
        ("a: 0x" + "f" * 5000, r"run\.yaml:1: got 0xfff.*at most 100 characters"),
        ("a: 1" + ":30" * 5000, r"run\.yaml:1: got 1:30:30.*at most 100 characters"),
        ("b: -0b" + "1" * 20_000, r"run\.yaml:1: got -0b111.*at most 100 characters"),
        ("? " + "7" * 5000 + "\n: 1", r"run\.yaml:1: got 777.*at most 100 characters"),
        ("? [a, b]\n: 1\n", r"run\.yaml:1: got the key a sequence, allowed: text keys"),
        ("? {a: 1}\n: 1\n", r"run\.yaml:1: got the key a mapping, allowed: text keys"),
        ("a: 1\nb: !!int ''\n", r"run\.yaml:2: got the YAML tag"),
        ("1: x\n", r"run\.yaml:1: got the key 1, allowed: text keys"),
        (b"\xff\xfe\x00\x01", r"run\.yaml:1: got bytes that are not UTF-8"),
        (b"a: 1\nb: \xff\n", r"run\.yaml:2: got bytes that are not UTF-8"),
        ('a: 1\nb: "\\ud800"\n', r"run\.yaml:2: got "),
        ('a: 1\nb: "\\UFFFFFFFF"\n', r"run\.yaml:2: not valid YAML: \\UFFFFFFFF is beyond the last character"),
        ('b: "\\U00110000"\n', r"run\.yaml:1: not valid YAML: \\U00110000 is beyond the last character"),
        ("a: 1\nb: \0\n", r"run\.yaml:2: not valid YAML: the character '\\x00' is not allowed\.$"),
        ('a: 1\n"\\e[1m": 1\n"\\e[1m": 2\n', r"run\.yaml:3: the key '\\x1b\[1m' appears twice"),
        ("- 1\n" * 20_001, r"run\.yaml:\d+: got more than 20000 keys and values"),
        ("[" * 5000, r"run\.yaml:1: lists and mappings nest more than 32 deep"),
        ("x" * (1_000_001), "larger than 1000000 bytes"),
    ],
)
def test_hostile_or_invalid_file_is_rejected_in_one_line(tmp_path, text, message):
    with pytest.raises(InputError, match=message) as caught:
        read_yaml(write(tmp_path, text))
    assert str(caught.value).count("run.yaml") == 1
    assert "\n" not in str(caught.value)


def test_last_unicode_character_and_escaped_backslash_are_accepted():
    assert parse_yaml(r'["\U0010FFFF", "\\UFFFFFFFF"]', "run.yaml")[0] == ["\U0010ffff", "\\UFFFFFFFF"]


def test_number_keys_become_text():
    data, locate = parse_yaml("names:\n  0: cat\n  0x10: dog\n", "data.yaml", number_keys=True)
    assert data == {"names": {"0": "cat", "16": "dog"}}
    assert locate(("names", "16")) == "data.yaml:3"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0: cat\n'0': dog\n", r"data\.yaml:2: the key '0' appears twice"),
        ("1.5: cat\n", r"data\.yaml:1: got the key 1\.5, allowed: text keys"),
        ("true: cat\n", r"data\.yaml:1: got the key true, allowed: text keys"),
    ],
)
def test_other_keys_are_rejected_with_number_keys(text, message):
    with pytest.raises(InputError, match=message):
        parse_yaml(text, "data.yaml", number_keys=True)


def test_unambiguous_numbers_and_quoted_text_are_accepted():
    text = "[0, -1, 0.5, 00.5, 1_000, 0x10, 1e3, '010', '1:30', 08, a:30]"
    values = [0, -1, 0.5, 0.5, 1000, 16, "1e3", "010", "1:30", "08", "a:30"]  # 1e3 and 08 are no numbers in YAML 1.1
    assert parse_yaml(text, "run.yaml")[0] == values


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.yaml", r"none\.yaml: no such file"),
        (".", r": is a folder, allowed: a file"),
        *((name, r": cannot be read \(") for name in ("x" * 300, "a\0b")),
    ],
)
def test_a_path_that_is_no_file_is_rejected(tmp_path, name, message):
    with pytest.raises(InputError, match=message):
        read_yaml(tmp_path / name)
