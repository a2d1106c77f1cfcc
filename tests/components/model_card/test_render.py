import re

import pytest

from detloom.components.model_card.card import build_card, write_card
from detloom.components.model_card.document import build_document
from detloom.components.model_card.render import (
    Bullets,
    Code,
    Document,
    Facts,
    Folded,
    Section,
    Table,
    Text,
    format_markdown,
    format_page,
)
from detloom.components.pages.formats import escape_markdown
from detloom.schemas.run_file.model_card import ModelCardConfig

EVIL = "</td><script>alert(1)</script>|[x](javascript:alert(1))`*_\u202e"


def document_of(*blocks, title="pets"):
    return Document(title=title, verdict="passed", summary="Fine.", key_numbers=[], sections=[Section("All", blocks)])


def everything(text):
    cells = [[{"text": text}]]
    return document_of(
        Text(text),
        Facts([(text, text)]),
        Bullets([text]),
        Table([{"title": "Name", "is_number": False}], cells),
        Code(text),
        Folded("More", text),
        title=text,
    )


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a|b", r"a\|b"),
        ("<img src=x>", "&lt;img src=x&gt;"),
        ("&amp;", "&amp;amp;"),
        ("[a](b)", r"\[a\](b)"),
        ("`x` *y* _z_ ~w~ $v$", r"\`x\` \*y\* \_z\_ \~w\~ \$v\$"),
        ("back\\slash", r"back\\slash"),
        ("two\nlines\tand tabs", "two lines and tabs"),
        ("turned\u202e", r"turned\\u202e"),
        ("", ""),
    ],
)
def test_markup_is_escaped_in_markdown(text, escaped):
    assert escape_markdown(text) == escaped


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("# a", r"\# a"),
        ("- a", r"\- a"),
        ("+ a", r"\+ a"),
        ("1. a", r"1\. a"),
        ("12) a", r"12\) a"),
        ("a - b", "a - b"),
    ],
)
def test_text_at_the_start_of_a_line_does_not_begin_a_list_or_heading(text, line):
    assert format_markdown(document_of(Text(text))).splitlines()[-1] == line
    assert format_markdown(document_of(Bullets([text]))).splitlines()[-1] == f"- {line}"


def test_markup_is_escaped_in_every_block_in_markdown():
    text = format_markdown(everything(EVIL))
    fenced = re.compile(r"^````*\n.*?^````*$", re.DOTALL | re.MULTILINE)
    assert len(fenced.findall(text)) == 2
    rest = fenced.sub("", text)
    assert "<script" not in rest
    assert "](" not in rest.replace(r"\](", "")
    (row,) = [line for line in rest.splitlines() if line.startswith("| ") and "script" in line]
    assert len(re.findall(r"(?<!\\)\|", row)) == 2  # the two ends
    assert "\u202e" not in text


def test_a_fence_is_longer_than_the_backticks_inside():
    lines = format_markdown(document_of(Code("a ```` b"))).splitlines()
    assert lines[-3:] == ["`````", "a ```` b", "`````"]


def test_markup_is_escaped_in_every_block_on_the_page():
    page = format_page(everything(EVIL))
    assert page.count("<script>") == 1  # the script that sorts tables
    assert "alert(1)</script>" not in page
    assert "\u202e" not in page


def test_the_page_has_no_external_resources_and_fits_a_phone(make_inputs, tmp_path):
    write_card(build_card(make_inputs()), str(tmp_path))
    page = (tmp_path / "model_card.html").read_text()
    assert not re.search(r"https?://|<link|@import|src=[\"'](?!data:)", page)
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page


def test_class_names_are_escaped_in_both_forms(make_inputs, tmp_path):
    write_card(build_card(make_inputs()), str(tmp_path))
    for name in ("model_card.html", "model_card.md"):
        text = (tmp_path / name).read_text()
        assert "&lt;b&gt;dog&lt;/b&gt;" in text
        assert "<b>dog" not in text


def test_stated_facts_are_shown_and_the_citation_keeps_its_lines(make_inputs):
    stated = ModelCardConfig(
        purpose="Finds pets.", owners=("Ada", "Bo"), citation="@misc{a,\n  year = 2026\n}\n", limits=("Only indoors.",)
    )
    text = format_markdown(build_document(build_card(make_inputs(stated=stated))))
    assert "- **Purpose**: Finds pets.\n" in text
    assert "- **Owners**: Ada, Bo\n" in text
    assert "- **License of the model**: not stated\n" in text
    assert "```\n@misc{a,\n  year = 2026\n}\n```" in text
    assert "## Limits\n\n- Only indoors.\n" in text


def test_outputs_common_to_all_signatures_are_listed_once(make_inputs):
    text = format_markdown(build_document(build_card(make_inputs())))
    assert text.count(r"detection\_boxes") == 1
    assert r"| all | out | detection\_boxes | float32 | – |" in text
    assert r"| serving\_encoded | in | image\_bytes | string \[?\] | – |" in text


def test_omitted_table_rows_are_counted():
    rows = [[{"text": str(number)}] for number in range(500)]
    table = Table([{"title": "Name", "is_number": False}], rows, num_more=1234)
    assert "1,234 more rows" in format_markdown(document_of(table))
    assert "1,234 more rows" in format_page(document_of(table))


def test_the_full_configuration_is_folded_in_both_forms(make_inputs, tmp_path):
    write_card(build_card(make_inputs()), str(tmp_path))
    for name in ("model_card.html", "model_card.md"):
        text = (tmp_path / name).read_text()
        assert "<details><summary>Full configuration</summary>" in text
        assert "max_total_detections" in text
