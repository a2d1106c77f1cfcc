import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap, format_label_map, parse_label_map, read_label_map


@pytest.mark.parametrize("names", [["cat"], ["a{b}", "c'd\"", "x # y", "back\\slash", "two\nlines", "Ünïcode"]])
def test_parse_inverts_format(names):
    label_map = LabelMap.from_names(names)
    assert parse_label_map(format_label_map(label_map)) == label_map


def test_display_name_wins_and_ids_may_have_gaps():
    text = '# a comment\nitem { id: 3 name: "/m/01" display_name: "cat" }\nitem { id: 1, name: \'dog\' }'
    label_map = parse_label_map(text)
    assert (label_map.class_ids, label_map.names) == ((1, 3), ("dog", "cat"))
    assert (label_map.name_of(3), label_map.name_of(2)) == ("cat", "#2")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no classes"),
        ("hello", "got 'hello', allowed: a list of 'item"),
        ("item { id: 1 }", "needs a positive id and a name"),
        ("item { id: 0 name: 'x' }", "got id 0, allowed: 1 and up"),
        ("item { id: 1 name: 'x' } item { id: 1 name: 'y' }", "id '1' stands twice"),
        ("item { id: 1 name: 'x' } item { id: 2 name: 'x' }", "name 'x' stands twice"),
    ],
)
def test_a_broken_label_map_is_refused_with_its_place(text, message):
    with pytest.raises(InputError, match=f"labels.pbtxt: .*{message}"):
        parse_label_map(text, where="labels.pbtxt")


def test_a_missing_label_map_is_named(tmp_path):
    with pytest.raises(InputError, match=r"none\.pbtxt: the label map cannot be read"):
        read_label_map(tmp_path / "none.pbtxt")
