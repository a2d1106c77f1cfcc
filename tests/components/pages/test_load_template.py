import base64
import hashlib
import re
from pathlib import Path

import jinja2
import pytest

from detloom.components.pages import load_template as module
from detloom.components.pages.charts import PAGE_LOOK, Line, format_svg

SCRIPT = (Path(module.__file__).parent / "sort_tables.js").read_text("utf-8")
PLAIN = """{% extends "page.html.j2" %}
{% block title %}{{ name }}{% endblock %}
{% block content %}<h1>{{ name }}</h1>{% endblock %}
"""
SORTABLE = "{% set has_sortable_tables = true %}" + PLAIN
WITH_MACROS = """{% import "macros.html.j2" as parts %}"""


def policy_of(page):
    return re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)


def test_a_page_has_the_shared_frame_and_escaped_texts(render):
    page = render(PLAIN, name="<b>cats & dogs</b>")
    assert page.startswith("<!doctype html>\n")
    assert re.search(r"written on 20\d\d-\d\d-\d\d", page)
    assert "&lt;i&gt;cells, written on" in render(PLAIN, name="x", pipeline="<i>cells")
    assert "<title>&lt;b&gt;cats &amp; dogs&lt;/b&gt;</title>" in page
    assert "<h1>&lt;b&gt;cats &amp; dogs&lt;/b&gt;</h1>" in page


def test_a_template_of_the_component_overrides_the_shared_one(render, tmp_path):
    (tmp_path / "page.html.j2").write_text("mine: {% block content %}{% endblock %}")
    assert render(PLAIN, name="cats") == "mine: <h1>cats</h1>"


def test_a_missing_value_is_an_error(render):
    with pytest.raises(jinja2.UndefinedError, match="'name' is undefined"):
        render(PLAIN)


def test_number_filters(render):
    text = "{{ a|number }} {{ none|number }} {{ a|signed }} {{ a|percent }} {{ a|share }} {{ 1200|count }}"
    assert render(text, a=0.0123) == "0.012 – +0.012 1.2 % 1.2 % 1,200"


@pytest.mark.parametrize("text", [PLAIN, "{% set has_sortable_tables = false %}" + PLAIN])
def test_a_page_without_sortable_tables_has_no_script_and_allows_none(render, text):
    page = render(text, name="cats")
    assert policy_of(page) == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]
    assert "script" not in page


def test_a_page_with_sortable_tables_allows_only_its_own_script(render):
    page = render(SORTABLE, name="cats")
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rest = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert policy_of(page) == [f"{rest}; script-src 'sha256-{digest}'"]
    assert script == SCRIPT


def test_a_script_containing_an_end_tag_is_refused(tmp_path):
    (tmp_path / "bad.js").write_text("const end = '</script>';\n")
    with pytest.raises(AssertionError, match=r"bad\.js"):
        module.read_script(tmp_path / "bad.js")


def test_a_sortable_table_contains_texts_and_sort_values(render):
    columns = [{"title": "Class", "is_number": False}, {"title": "AP", "is_number": True}]
    rows = [[{"text": "<cat>"}, {"text": "51.2 %", "value": 0.5123}], [{"text": "dog"}, {"text": "–", "value": None}]]
    html = render(WITH_MACROS + "{{ parts.sortable_table(columns, rows) }}", columns=columns, rows=rows)
    assert re.findall(r"<t[hd][ >].*?</t[hd]>", html) == [
        "<th>Class</th>",
        '<th class="n">AP</th>',
        '<td class="name">&lt;cat&gt;</td>',
        '<td class="n" data-value="0.5123">51.2 %</td>',
        '<td class="name">dog</td>',
        '<td class="n">–</td>',
    ]


def test_a_figure_without_an_image_says_so(render):
    text = WITH_MACROS + "{{ parts.figure(uri, 'two boxes', 'a < b') }}"
    shown, missing = render(text, uri="data:image/jpeg;base64,QUJD"), render(text, uri=None)
    assert 'src="data:image/jpeg;base64,QUJD" alt="two boxes"' in shown
    assert "<img" not in missing
    assert "no image" in missing
    assert "<figcaption>a &lt; b</figcaption>" in missing


def test_a_line_chart_has_a_title_and_a_legend_of_its_lines(render):
    lines = [Line(name=name, points=[(0, 1), (1, 0)]) for name in ("<cat>", "dog")]
    svg = format_svg("<title>", "recall", "precision", lines, look=PAGE_LOOK)
    html = render(WITH_MACROS + "{{ parts.line_chart('<title>', svg, names) }}", svg=svg, names=["<cat>", "dog"])
    assert "<h3>&lt;title&gt;</h3>" in html
    assert svg in html
    assert re.findall(r'<span class="dot (c\d)"></span>([^<]*)<', html) == [("c0", "&lt;cat&gt;"), ("c1", "dog")]
