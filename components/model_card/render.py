"""A card's document as Markdown and as a page. Every text is escaped: names of classes come from strangers."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from detloom.components.model_card.blocks import Block, Document, Table
from detloom.components.pages.formats import format_count
from detloom.components.pages.load_template import load_template
from detloom.schemas.redact import escape

_TEMPLATE = "card.html.j2"
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_MARKS = re.compile(r"([\\|`*_~$\[\]])")
_AT_THE_START = re.compile(r"^(\d{1,9}(?=[.)])|[-+#=:])")  # of a list, a heading, a rule, a definition
_BACKTICKS = re.compile("`+")


def format_markdown(document: Document) -> str:
    """GitHub's Markdown, a heading a section."""
    lines = [f"# {escape_markdown(document.title)}", "", _escape_line(document.summary), ""]
    for name, value, more in document.key_numbers:
        lines.append(f"- **{escape_markdown(name)}**: {escape_markdown(f'{value} ({more})' if more else value)}")
    for section in document.sections:
        lines += ["", f"## {escape_markdown(section.title)}"]
        for block in section.blocks:
            lines += ["", *_markdown_lines(block)]
    return "\n".join([*lines, ""])


def format_page(document: Document) -> str:
    """One page that fetches nothing; its only script sorts tables."""
    template = load_template(Path(__file__).parent, _TEMPLATE)
    return template.render(document=document, visible=show_lines, visible_rows=_show_rows)


def escape_markdown(text: str) -> str:
    """On one line, as text and nothing else, in a table too; unprintable characters are shown as escapes."""
    text = escape(" ".join(text.split()))
    for mark, entity in _ENTITIES.items():
        text = text.replace(mark, entity)
    return _MARKS.sub(r"\\\1", text)


def _escape_line(text: str) -> str:
    """As `escape_markdown`, of what begins a line."""
    return _AT_THE_START.sub(lambda match: _escape_start(match.group()), escape_markdown(text))


def _escape_start(found: str) -> str:
    return f"{found}\\" if found[0].isdigit() else f"\\{found}"


def show_lines(text: str) -> str:
    """The lines as they are, with unprintable characters as escapes."""
    return "\n".join(escape(line.expandtabs(4)) for line in text.splitlines())


def _show_rows(rows: Sequence[Sequence[Mapping[str, Any]]]) -> list[list[Mapping[str, Any]]]:
    return [[{**cell, "text": escape(cell["text"])} for cell in row] for row in rows]


def _markdown_lines(block: Block) -> Iterator[str]:
    match block.kind:
        case "text":
            yield _escape_line(block.text)
        case "heading":
            yield f"### {escape_markdown(block.text)}"
        case "bullets":
            yield from (f"- {_escape_line(item)}" for item in block.items)
        case "facts":
            yield from (f"- **{escape_markdown(name)}**: {escape_markdown(value)}" for name, value in block.rows)
        case "code":
            yield from _fenced(block.text)
        case "folded":
            yield from (f"<details><summary>{escape_markdown(block.summary)}</summary>", "")
            yield from (*_fenced(block.code), "", "</details>")
        case "table":
            yield from _table_lines(block)


def _table_lines(table: Table) -> Iterator[str]:
    yield f"| {' | '.join(escape_markdown(column['title']) for column in table.columns)} |"
    yield f"|{'|'.join(' ---: ' if column['is_number'] else ' --- ' for column in table.columns)}|"
    for row in table.rows:
        yield f"| {' | '.join(escape_markdown(cell['text']) for cell in row)} |"
    if table.num_more:
        yield from ("", f"{format_count(table.num_more)} more rows are in the JSON file beside this one.")


def _fenced(text: str) -> Iterator[str]:
    """Between fences that are longer than any row of backticks inside."""
    fence = "`" * max([3, *(len(found) + 1 for found in _BACKTICKS.findall(text))])
    yield from (fence, *show_lines(text).split("\n"), fence)
