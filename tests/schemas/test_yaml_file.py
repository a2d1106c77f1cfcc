from pathlib import Path

import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.yaml_file import MAX_YAML_BYTES, read_yaml


def write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "run.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_plain_data_comes_back_with_the_line_of_every_key(tmp_path):
    data, locate = read_yaml(write(tmp_path, "a: 1\nb:\n  c: [x, 2.5]\n"))
    assert data == {"a": 1, "b": {"c": ["x", 2.5]}}
    assert locate(("b", "c")) == f"{tmp_path / 'run.yaml'}:3"
    assert locate(("b", "unknown")) == f"{tmp_path / 'run.yaml'}:2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", r"run\.yaml:2: the key 'a' stands twice"),
        ("a: &x [1]\nb: *x\n", r"run\.yaml:2: YAML aliases"),
        ("a: [1, 2\n", r"run\.yaml:\d: not valid YAML"),
        ("a: !!python/object/apply:os.system ['true']\n", r"run\.yaml:1: got the YAML tag"),
        ("a: !!python/name:os.system ''\n", "not valid YAML: could not determine a constructor"),
        ("1: x\n", r"run\.yaml:1: got the key 1, allowed: text keys"),
        (b"\xff\xfe\x00\x01", r"run\.yaml:1: cannot be read"),
        ("a: 2024-13-45\n", "not a usable YAML file"),
        ("[" * 5000, r"run\.yaml:1: lists and mappings nest more than 32 deep"),
        ("x" * (MAX_YAML_BYTES + 1), "allowed: 1048576"),
    ],
)
def test_a_hostile_or_broken_file_is_one_clear_error(tmp_path, text, message):
    with pytest.raises(InputError, match=message) as caught:
        read_yaml(write(tmp_path, text))
    assert str(caught.value).count("run.yaml") == 1


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"none\.yaml: no such file"):
        read_yaml(tmp_path / "none.yaml")
