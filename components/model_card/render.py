"""The document of a card (sections of text, lists and tables), rendered as Markdown and as a page.

The texts of a document are plain. Rendering escapes them all, because class names are untrusted.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from detloom.components.pages.formats import escape_markdown, escape_markdown_line, format_count
from detloom.components.pages.load_template import load_template
from detloom.schemas.reading.redact import escape

_TEMPLATE = "card.html.j2"
_BACKTICKS = re.compile("`+")


@dataclass(frozen=True)
class Text:
    """A paragraph; a soft one is explanatory and shown in a muted colour."""

    text: str
    is_soft: bool = False
    kind: Literal["text"] = "text"


@dataclass(frozen=True)
class Facts:
    """Pairs of name and value."""

    rows: Sequence[tuple[str, str]]
    kind: Literal["facts"] = "facts"


@dataclass(frozen=True)
class Bullets:
    """A bulleted list of sentences."""

    items: Sequence[str]
    kind: Literal["bullets"] = "bullets"


@dataclass(frozen=True)
class Table:
    """A table in the form of the page's macro `sortable_table`.

    Attributes:
        columns: each has `title` and `is_number`.
        rows: one cell per column, with `text` and an optional `value` to sort by.
        num_more: number of omitted rows; the JSON file contains them.
    """

    columns: Sequence[Mapping[str, Any]]
    rows: Sequence[Sequence[Mapping[str, Any]]]
    num_more: int = 0
    kind: Literal["table"] = "table"


@dataclass(frozen=True)
class Code:
    """Preformatted lines."""

    text: str
    kind: Literal["code"] = "code"


@dataclass(frozen=True)
class Heading:
    """Heading of a part of a section."""

    text: str
    kind: Literal["heading"] = "heading"


@dataclass(frozen=True)
class Folded:
    """Preformatted lines that are shown when the summary is clicked."""

    summary: str
    code: str
    kind: Literal["folded"] = "folded"


Block = Text | Facts | Bullets | Table | Code | Heading | Folded


@dataclass(frozen=True)
class Section:
    title: str
    blocks: Sequence[Block] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Document:
    """A whole card.

    Attributes:
        verdict: "passed", "failed", "warned" or "off", the CSS class of the first section.
        key_numbers: the most important numbers, as (name, number, addition or "").
    """

    title: str
    verdict: str
    summary: str
    key_numbers: Sequence[tuple[str, str, str]]
    sections: Sequence[Section]


def format_markdown(document: Document) -> str:
    """Format the document as GitHub Markdown, with one heading per section."""
    lines = [f"# {escape_markdown(document.title)}", "", escape_markdown_line(document.summary), ""]
    for name, value, more in document.key_numbers:
        lines.append(f"- **{escape_markdown(name)}**: {escape_markdown(f'{value} ({more})' if more else value)}")
    for section in document.sections:
        lines += ["", f"## {escape_markdown(section.title)}"]
        for block in section.blocks:
            lines += ["", *_markdown_lines(block)]
    return "\n".join([*lines, ""])


def format_page(document: Document) -> str:
    """Format the document as one page without external resources; its only script sorts tables."""
    template = load_template(Path(__file__).parent, _TEMPLATE)
    return template.render(document=document, visible=show_lines, visible_rows=_show_rows)


def show_lines(text: str) -> str:
    """Return the lines unchanged except that unprintable characters are escaped."""
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
        yield from ("", f"{format_count(table.num_more)} more rows are in the JSON file of this card.")


def _fenced(text: str) -> Iterator[str]:
    """Enclose text in fences that are longer than any sequence of backticks inside."""
    fence = "`" * max([3, *(len(found) + 1 for found in _BACKTICKS.findall(text))])
    yield from (fence, *show_lines(text).split("\n"), fence)
