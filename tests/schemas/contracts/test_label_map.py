import pytest
from hypothesis import given
from hypothesis import strategies as st

from detloom.schemas.contracts.label_map import (
    LabelMap,
    describe_difference,
    format_label_map,
    parse_label_map,
    read_label_map,
    write_label_map,
)
from detloom.schemas.errors import InputError


@pytest.mark.parametrize(
    "names",
    [["cat"], ["a{b}", "c'd\"", "x # y", "back\\slash", "Ünïcode"], ["\t", "\x1b[0m", "a\rb", "a\r\nb", "\x0c"]],
)
def test_label_map_survives_a_file(names, tmp_path):
    label_map = LabelMap.from_names([*names, "a\x85b\u2028c", "two\nlines"])
    write_label_map(tmp_path / "label_map.pbtxt", label_map)
    assert read_label_map(tmp_path / "label_map.pbtxt") == label_map
    with pytest.raises(InputError, match=r"none\.pbtxt: the label map cannot be read"):
        read_label_map(tmp_path / "none.pbtxt")


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1), unique=True))
def test_label_map_round_trip_keeps_any_name(names):
    label_map = LabelMap.from_names(["first of all", *(f"{name}." for name in names)])
    assert parse_label_map(format_label_map(label_map)) == label_map


def test_escape_sequences_are_decoded():
    text = r"""item { id: 1 name: "\303\274 \xc3\xbc \u00fc \U000000fc \t\"" } item { id: 2 name: "a" 'b' }"""
    assert parse_label_map(text).names == ('ü ü ü ü \t"', "ab")


def test_nested_blocks_and_other_fields_are_skipped_and_ids_may_have_gaps():
    text = """
    item { name: "/m/01g317" id: 3 display_name: "person"
      keypoints { id: 0 label: "nose" } keypoints: < id: 7 label: "eye" >
      frequency: FREQUENT ancestor_ids: ["/m/0", "/m/1"]
    }
    # a comment
    item: { id: 1, name: 'dog' };
    """
    label_map = parse_label_map(text)
    assert label_map.names_by_id == ((1, "dog"), (3, "person"))
    assert (label_map.class_ids, label_map.names) == ((1, 3), ("dog", "person"))
    assert (label_map.name_of(3), label_map.name_of(2)) == ("person", "#2")


@pytest.mark.parametrize(
    "text",
    [
        "item" + " " * 1_000_000,
        'item { id: 1 name: "x" ' + "a" * 1_000_000,
        'item { id: 1 name: "x" ' + "a " * 300_000,
        "item { " * 100_000,
        'item { name: "' + "\\a" * 300_000,
        "item { id: " + "9" * 100_000 + " name: 'x' }",
    ],
)
def test_long_invalid_text_is_rejected_without_hanging(text):
    with pytest.raises(InputError) as caught:
        parse_label_map(text)
    assert len(str(caught.value)) < 300


def test_label_map_with_many_classes_is_read():
    names = [f"class {number}" for number in range(50_000)]
    assert LabelMap.from_names(names).num_classes == 50_000
    with pytest.raises(InputError, match="'class 7' appears twice"):
        LabelMap.from_names([*names, "class 7"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no classes"),
        ("hello", "1: hello: got the end of the text"),
        ("\nhello: 3", "2: got 'hello', allowed: .*item"),
        ("item: 3", "1: got 'item', allowed: .*item"),
        ("item { id: 1\n name: 'x'", "2: item: got the end of the text, allowed: '}'"),
        ("item { id: 1 name: 'x' > }", "1: item: got '>', allowed"),
        ("item { id: 1\n name: '\\xff' }", "2: item.name: got"),
        (r"item { id: 1 name: '\ud800' }", "Unicode"),
        ("item { id: -1 name: 'x' }", "1: item: got id '-1'"),
        ("\n\nitem { id: 1 }", "3: item: got id '1' and name ''"),
        ("item { id: 0 name: 'x' }", "got id 0, allowed: 1 and up"),
        ("item { id: 16777217 name: 'x' }", "got id 16777217, allowed: up to 16777216"),
        ("item { id: 1 name: 'x' } item { id: 1 name: 'y' }", "id '1' appears twice"),
        ("item {\n id: 1\n name: 'x'\n id: 2\n}", "4: id occurs twice in one item"),
        ("item { id: 1 name: 'x' } item { id: 2 name: 'x' }", "name 'x' appears twice"),
    ],
)
def test_invalid_label_map_is_rejected_with_file_name(text, message):
    with pytest.raises(InputError, match=f"labels.pbtxt:.*{message}"):
        parse_label_map(text, where="labels.pbtxt")


@pytest.mark.parametrize(
    ("names", "difference"),
    [
        (["cat", "dog"], None),
        (["cat"], "id 2: none before, dog now"),
        (["dog", "cat"], "id 1: dog before, cat now, and 1 more"),
        (["cat", "dog", "\x1b[31m"], r"id 3: \x1b[31m before, none now"),
    ],
)
def test_the_first_class_that_differs_is_named(names, difference):
    assert describe_difference(LabelMap.from_names(names), LabelMap.from_names(["cat", "dog"])) == difference
