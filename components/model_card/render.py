"""A card's document as Markdown and as a page. Every text is escaped: names of classes come from strangers."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from detloom.components.model_card.blocks import Block, Document, Table
from detloom.components.pages.formats import format_count
from detloom.components.pages.load_template import load_template
from detloom.components.pages.markdown_text import escape_markdown, escape_markdown_line
from detloom.schemas.redact import escape

_TEMPLATE = "card.html.j2"
_BACKTICKS = re.compile("`+")


def format_markdown(document: Document) -> str:
    """GitHub's Markdown, a heading a section."""
    lines = [f"# {escape_markdown(document.title)}", "", escape_markdown_line(document.summary), ""]
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


def show_lines(text: str) -> str:
    """The lines as they are, with unprintable characters as escapes."""
    return "\n".join(escape(line.expandtabs(4)) for line in text.splitlines())


def _show_rows(rows: Sequence[Sequence[Mapping[str, Any]]]) -> list[list[Mapping[str, Any]]]:
    return [[{**cell, "text": escape(cell["text"])} for cell in row] for row in rows]


def _markdown_lines(block: Block) -> Iterator[str]:
    match block.kind:
        case "text":
            yield escape_markdown_line(block.text)
        case "heading":
            yield f"### {escape_markdown(block.text)}"
        case "bullets":
            yield from (f"- {escape_markdown_line(item)}" for item in block.items)
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
