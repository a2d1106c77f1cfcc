"""Run the script in a browser, if one is installed."""

import re
from pathlib import Path

import pytest

from detloom.components.pages import load_template as module

SCRIPT = (Path(module.__file__).parent / "sort_tables.js").read_text("utf-8")
TABLE = """{% import "macros.html.j2" as parts %}
<div id="{{ name }}">{{ parts.sortable_table(columns, rows) }}</div>
"""
COLUMNS = [{"title": "Class", "is_number": False}, {"title": "AP", "is_number": True}]
# Sorted as text, 1e-05 would come after 0.4, and "img 10" before "img 9".
ROWS = [
    [{"text": "img 10"}, {"text": "-0.300", "value": -0.3}],
    [{"text": "Zebra"}, {"text": "–"}],
    [{"text": "ant"}, {"text": "0.400", "value": 0.4}],
    [{"text": "img 9"}, {"text": "0.000", "value": 1e-05}],
]
PRESS = "{bubbles: true, key: "
ACTIONS = {
    "nothing": "",
    "numbers": "headers[1].click()",
    "numbers_twice": "headers[1].click(); headers[1].click()",
    "texts": "headers[0].click()",
    "then_numbers": "headers[0].click(); headers[1].click()",
    "enter": f"headers[1].dispatchEvent(new KeyboardEvent('keydown', {PRESS}'Enter'}}))",
    "other_key": f"headers[1].dispatchEvent(new KeyboardEvent('keydown', {PRESS}'x'}}))",
}


@pytest.fixture(scope="module")
def dump_dom(browser, tmp_path_factory):
    """Return the DOM of a page after its scripts have run."""

    def dump(page: str) -> str:
        path = tmp_path_factory.mktemp("page") / "page.html"
        path.write_text(page, encoding="utf-8")
        tab = browser.open(path.as_uri())
        dom = tab.evaluate("document.documentElement.outerHTML")
        tab.close()
        return dom

    return dump


@pytest.fixture(scope="module")
def tables(dump_dom, tmp_path_factory):
    """Tables after each action as (first column, aria-sort of both headers), from one start of the browser."""
    folder = tmp_path_factory.mktemp("templates")
    (folder / "table.html.j2").write_text(TABLE)
    template = module.load_template(folder, "table.html.j2")
    tables = "".join(template.render(name=name, columns=COLUMNS, rows=ROWS) for name in ACTIONS)
    actions = "".join(
        f"{{ const headers = document.querySelectorAll('#{name} th'); {do} }}" for name, do in ACTIONS.items()
    )
    page = f"<!doctype html><meta charset='utf-8'>{tables}<script>{SCRIPT}</script><script>{actions}</script>"
    parts = re.findall(r'<div id="(\w+)">(.*?)</table>', dump_dom(page), re.DOTALL)
    return {name: (re.findall(r'<td class="name">(.*?)</td>', part), sorts_of(part)) for name, part in parts}


def sorts_of(part):
    found = [re.search(r'aria-sort="(\w+)"', header) for header in re.findall(r"<th.*?>", part) if header != "<thead>"]
    return [match and match[1] for match in found]


@pytest.mark.parametrize(
    ("actions", "rows", "sorts"),
    [
        (("nothing", "other_key"), ["img 10", "Zebra", "ant", "img 9"], [None, None]),
        # Missing values are last; only one column is marked as sorted; Enter sorts like a click.
        (("numbers", "then_numbers", "enter"), ["img 10", "img 9", "ant", "Zebra"], [None, "ascending"]),
        (("numbers_twice",), ["ant", "img 9", "img 10", "Zebra"], [None, "descending"]),
        (("texts",), ["ant", "img 9", "img 10", "Zebra"], ["ascending", None]),
    ],
)
def test_tables_are_sorted_by_clicks_and_keys(tables, actions, rows, sorts):
    assert [tables[action] for action in actions] == [(rows, sorts)] * len(actions)


def test_the_browser_runs_only_the_page_s_own_script(dump_dom, tmp_path):
    (tmp_path / "own.html.j2").write_text(
        """{% set has_sortable_tables = true %}{% extends "page.html.j2" %}{% import "macros.html.j2" as parts %}
        {% block content %}{{ parts.sortable_table(columns, rows) }}
        <script>document.querySelector("td").textContent = "foreign"</script>{% endblock %}"""
    )
    dom = dump_dom(module.load_template(tmp_path, "own.html.j2").render(columns=COLUMNS, rows=ROWS))
    assert dom.count('tabindex="0"') == len(COLUMNS)  # set by our script
    assert '<td class="name">img 10</td>' in dom
