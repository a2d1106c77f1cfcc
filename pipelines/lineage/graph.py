"""The lineage graph: nodes and edges. Independent of ML Metadata, files and output formats."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from detloom.schemas.reading.redact import escape, redact

MAX_WARM_STARTS = 5  # default number of warm starts to follow
_MAX_FACT_CHARS = 2000
_MAX_LINE_CHARS = 300


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node. All its texts fit on one line of a terminal and contain no password of an address.

    Attributes:
        id: such as `artifact:9`, `execution:6`, `version:1760000000`.
        kind: such as "model", "examples", "check".
        lines: summary for text and diagram.
        facts: everything that is known, by name.
        files_gone: its files were deleted; its texts come from ML Metadata and the push record.
    """

    id: str
    kind: str
    title: str
    lines: tuple[str, ...]
    facts: dict[str, str]
    files_gone: bool = False


@dataclass
class LineageGraph:
    """Nodes and edges in the order in which they were found.

    Attributes:
        root: id of the pushed version.
        labels: label of each edge (source, target), where the target was made from the source; often empty.
        notes: sentences about what is not shown.
    """

    root: str = ""
    nodes: dict[str, Node] = field(default_factory=dict)
    labels: dict[tuple[str, str], str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, node: Node) -> str:
        """Add a node, unless one with its id exists; return the id."""
        self.nodes.setdefault(node.id, node)
        return node.id

    def connect(self, source: str, target: str, label: str = "") -> None:
        """Add an edge, unless these nodes are connected."""
        self.labels.setdefault((source, target), label)

    def note(self, sentence: str) -> None:
        self.notes.append(safe_line(sentence, _MAX_FACT_CHARS))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        nodes = [asdict(node) for node in self.nodes.values()]
        edges = [
            {"source": source, "target": target, "label": label} for (source, target), label in self.labels.items()
        ]
        return {"root": self.root, "nodes": nodes, "edges": edges, "notes": self.notes}


def make_node(
    node_id: str,
    kind: str,
    title: str,
    lines: Iterable[str],
    facts: Mapping[str, object],
    *,
    files_gone: bool = False,
) -> Node:
    """Make a node from untrusted texts. Empty lines, and facts that are None or empty, are left out."""
    shown = [*lines, "files gone" if files_gone else ""]
    known = {name: value for name, value in facts.items() if value not in (None, "")}
    return Node(
        id=node_id,
        kind=kind,
        title=safe_line(title),
        lines=tuple(safe_line(line) for line in shown if line),
        facts={safe_line(name): safe_line(str(value), _MAX_FACT_CHARS) for name, value in known.items()},
        files_gone=files_gone,
    )


def safe_line(text: str, max_chars: int = _MAX_LINE_CHARS) -> str:
    """Return the text on one line of at most `max_chars` characters, without passwords in addresses."""
    words = text[: 2 * max_chars].split()
    text = " ".join(redact(word) if "://" in word else escape(word) for word in words)
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"
