"""The lineage graph: nodes, edges and a builder. Independent of ML Metadata, files and output formats."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from detloom.schemas.reading.redact import escape, redact

MAX_WARM_STARTS = 5  # default number of warm starts to follow
_MAX_FACT_CHARS = 2000
_MAX_LINE_CHARS = 300
GONE = "files gone"

Kind = Literal[
    "version", "model", "checkpoint", "config", "weights", "search", "examples", "data", "check", "evaluation"
]


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node. All its texts are safe to print on one line of a terminal and contain no password of an address.

    Attributes:
        node_id: unique id, such as `artifact:9`, `execution:6`, `version:1760000000`.
        lines: summary for the drawing and the text output.
        facts: all facts, as (name, value).
        is_gone: its files were deleted; its texts come from ML Metadata and the push record.
    """

    node_id: str
    kind: Kind
    title: str
    lines: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    is_gone: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "id": self.node_id,
            "kind": self.kind,
            "title": self.title,
            "lines": list(self.lines),
            "facts": dict(self.facts),
            "files_gone": self.is_gone,
        }


@dataclass(frozen=True, kw_only=True)
class Edge:
    """`target` was made from `source`. The label is empty if it would add nothing."""

    source: str
    target: str
    label: str


@dataclass(frozen=True, kw_only=True)
class LineageGraph:
    """An acyclic graph. `root` is the pushed version; each of `notes` is a sentence about something not shown."""

    root: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, in the order in which they were found."""
        return {
            "root": self.root,
            "nodes": [node.to_dict() for node in self.nodes],
            "edges": [{"source": edge.source, "target": edge.target, "label": edge.label} for edge in self.edges],
            "notes": list(self.notes),
        }


def version_id(version: int) -> str:
    """Return the id of the node of a pushed version."""
    return f"version:{version}"


def make_node(
    node_id: str,
    kind: Kind,
    title: str,
    lines: Iterable[str],
    facts: Mapping[str, object],
    *,
    is_gone: bool = False,
) -> Node:
    """Make a node from untrusted texts. Empty lines, and facts that are None or empty, are left out."""
    shown = [*lines, GONE if is_gone else ""]
    known = {safe_line(name): str(value) for name, value in facts.items() if value not in (None, "")}
    return Node(
        node_id=node_id,
        kind=kind,
        title=safe_line(title),
        lines=tuple(safe_line(line) for line in shown if line),
        facts=tuple((name, safe_line(value, _MAX_FACT_CHARS)) for name, value in known.items()),
        is_gone=is_gone,
    )


class GraphBuilder:
    """Collects nodes and edges. Each node is added once."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._edges: dict[tuple[str, str], Edge] = {}
        self._sources: dict[str, list[str]] = {}
        self._notes: dict[str, None] = {}

    def __contains__(self, node_id: str) -> bool:
        return node_id in self._nodes

    def add(self, node: Node) -> str:
        """Add a node and return its id; a node with the same id is kept."""
        self._nodes.setdefault(node.node_id, node)
        return node.node_id

    def connect(self, source: str, target: str, label: str = "") -> None:
        """Add an edge; add a note instead if it would close a cycle, which ML Metadata may contain."""
        if source == target or self._comes_from(source, target):
            self.note(f"ML Metadata contains a cycle: {target} was made from {source}, and {source} from {target}.")
            return
        if (source, target) not in self._edges:
            self._edges[source, target] = Edge(source=source, target=target, label=label)
            self._sources.setdefault(target, []).append(source)

    def note(self, sentence: str) -> None:
        self._notes[safe_line(sentence, _MAX_FACT_CHARS)] = None

    def build(self, root: str) -> LineageGraph:
        return LineageGraph(
            root=root, nodes=tuple(self._nodes.values()), edges=tuple(self._edges.values()), notes=tuple(self._notes)
        )

    def _comes_from(self, node_id: str, origin: str) -> bool:
        found, waiting = {node_id}, [node_id]
        while waiting:
            new = [each for each in self._sources.get(waiting.pop(), ()) if each not in found]
            found.update(new)
            waiting += new
        return origin in found


def safe_line(text: str, max_chars: int = _MAX_LINE_CHARS) -> str:
    """Return the text on one line of at most `max_chars` characters, without passwords in addresses."""
    words = text[: 2 * max_chars].split()
    text = " ".join(redact(word) if "://" in word else escape(word) for word in words)
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"
