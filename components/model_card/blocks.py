"""What a card is laid out with: sections of text, lists and tables, the one form that Markdown and the page come from.

All texts are plain; whoever renders them escapes them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Text:
    """A paragraph; a soft one explains."""

    text: str
    is_soft: bool = False
    kind: Literal["text"] = "text"


@dataclass(frozen=True)
class Facts:
    """Names with what is to be said of each."""

    rows: Sequence[tuple[str, str]]
    kind: Literal["facts"] = "facts"


@dataclass(frozen=True)
class Bullets:
    """A list of sentences."""

    items: Sequence[str]
    kind: Literal["bullets"] = "bullets"


@dataclass(frozen=True)
class Table:
    """A table as the page's macro `sortable_table` takes it.

    Attributes:
        columns: with `title` and `is_number`.
        rows: a cell a column, with `text` and, to sort by, `value`.
        num_more: rows that were left out; all of them are in the JSON file.
    """

    columns: Sequence[Mapping[str, Any]]
    rows: Sequence[Sequence[Mapping[str, Any]]]
    num_more: int = 0
    kind: Literal["table"] = "table"


@dataclass(frozen=True)
class Code:
    """Lines as they stand."""

    text: str
    kind: Literal["code"] = "code"


@dataclass(frozen=True)
class Heading:
    """Of a part of a section."""

    text: str
    kind: Literal["heading"] = "heading"


@dataclass(frozen=True)
class Folded:
    """Shown when its summary is clicked."""

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
        verdict: "passed", "failed", "warned" or "off", as the class of its head.
        key_numbers: what one looks for first, as (name, number, what belongs to it).
    """

    title: str
    verdict: str
    summary: str
    key_numbers: Sequence[tuple[str, str, str]]
    sections: Sequence[Section]
