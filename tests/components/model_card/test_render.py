import re

import pytest

from detloom.components.model_card.card import build_card, write_card
from detloom.components.model_card.render import format_markdown, format_page
from detloom.components.pages.formats import escape_markdown
from detloom.schemas.run_file.model_card import ModelCardSettings

EVIL = "# </td><script>alert(1)</script>|[x](javascript:alert(1))`*_~$\u202e</pre>"


@pytest.fixture
def hostile_card(make_inputs):
    """Return a card with hostile text wherever a text comes from data, files or people."""
    source = {"artifact_id": 3, "span": 4, "version": 1, "files": EVIL}
    texts = dict.fromkeys(("purpose", "contact", "license", "citation"), EVIL)
    stated = ModelCardSettings(owners=(EVIL,), limits=(EVIL,), **texts)
    card = build_card(make_inputs(name=EVIL, sources=[source], stated=stated, lineage=[(EVIL, EVIL)]))
    for row in (*card["classes"], *card["evaluation"]["per_class"], *card["evaluation"]["slices"]):
        row["name"] = EVIL
    card["data"]["health"]["findings"][0]["sentence"] = EVIL
    card["data"]["ingestion"]["refused_by_reason"] = {EVIL: 1}
    card["evaluation"]["decision"]["reason"] = EVIL
    card["evaluation"]["decision"]["gates"][0]["name"] = EVIL
    card["config"]["train"]["fine_tune_checkpoint"] = EVIL
    return card


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


def test_text_at_the_start_of_a_line_does_not_begin_a_list_or_heading(card):
    escaped = {"# a": r"\# a", "- a": r"\- a", "+ a": r"\+ a", "1. a": r"1\. a", "12) a": r"12\) a", "a - b": "a - b"}
    lines = format_markdown({**card, "limits": list(escaped)}).splitlines()
    first = lines.index(f"- {escaped['# a']}")
    assert lines[first : first + len(escaped)] == [f"- {line}" for line in escaped.values()]


def test_markup_is_escaped_in_markdown_text(hostile_card):
    text = format_markdown(hostile_card)
    assert text.count("</pre>") == 2  # the ends of citation and configuration
    assert "<script" not in text
    rest = re.sub(r"<pre>.*?</pre>", "", text, flags=re.DOTALL)
    assert "](" not in rest.replace(r"\](", "")
    assert "\u202e" not in text
    for line in rest.splitlines():
        if line.startswith("| # "):
            num_cells = len(re.findall(r"(?<!\\)\|", line)) - 1
            assert num_cells in (4, 5, 6, 12)  # gates, classes, slices, quality by class


def test_markup_is_escaped_on_the_page(hostile_card):
    page = format_page(hostile_card, format_markdown(hostile_card))
    assert "<script" not in page
    assert "href" not in page
    assert "\u202e" not in page
    assert page.count("</pre>") == 2
    visible = "# &lt;/td&gt;&lt;script&gt;alert(1)&lt;/script&gt;|[x](javascript:alert(1))`*_~$"
    assert f"<td>{visible}" in page
    assert f"<h1>{visible}" in page


def test_the_page_has_no_external_resources_and_fits_a_phone(card, tmp_path):
    write_card(card, str(tmp_path))
    page = (tmp_path / "model_card.html").read_text()
    assert not re.search(r"https?://|<link|@import|src=[\"'](?!data:)", page)
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page


def test_both_forms_have_the_sections_tables_and_the_folded_configuration(card, tmp_path):
    write_card(card, str(tmp_path))
    titles = ["Use", "Limits", "Classes", "Evaluation", "Data", "Training", "Export", "Provenance"]
    text, page = ((tmp_path / name).read_text() for name in ("model_card.md", "model_card.html"))
    assert re.findall("^## (.*)$", text, re.MULTILINE) == titles
    assert re.findall("<h2>(.*)</h2>", page) == titles
    assert page.count("<table>") == len(re.findall(r"^\| ---", text, re.MULTILINE)) == 7
    for form in (text, page):
        assert "<details><summary>Full configuration</summary>" in form
        assert "max_total_detections" in form
        assert "&lt;b&gt;dog&lt;/b&gt;" in form
        assert "<b>dog" not in form


def test_stated_facts_are_shown_and_the_citation_keeps_its_lines(make_inputs):
    stated = ModelCardSettings(
        purpose="Finds pets.", owners=("Ada", "Bo"), citation="@misc{a,\n  year = 2026\n}\n", limits=("Only indoors.",)
    )
    text = format_markdown(build_card(make_inputs(stated=stated)))
    assert "- **Purpose**: Finds pets.\n" in text
    assert "- **Owners**: Ada, Bo\n" in text
    assert "- **License**: not stated\n" in text
    assert "<pre>@misc{a,\n  year = 2026\n}</pre>" in text
    assert "## Limits\n\n- Only indoors.\n" in text


def test_outputs_are_listed_once(card):
    text = format_markdown(card)
    assert text.count(r"detection\_boxes") == 1
    assert r"| all | out | detection\_boxes | float32 \[B, 100, 4\] |" in text
    assert r"| serving\_encoded | in | image\_bytes | string \[B\] |" in text


def test_omitted_table_rows_are_counted(card):
    classes = [{"id": number, "name": str(number), "num_boxes_by_split": None} for number in range(1, 1735)]
    text = format_markdown({**card, "classes": classes})
    assert "1,234 more rows" in text
    assert "| 500 | 500 |" in text
    assert "| 501 | 501 |" not in text
