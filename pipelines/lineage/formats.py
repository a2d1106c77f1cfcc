"""Format the graph as an indented text and as a Mermaid diagram."""

import re

from detloom.pipelines.lineage.graph import LineageGraph
from detloom.schemas.reading.redact import escape

_INDENT = "  "
_CHECKS = ("evaluation", "check")  # their sources (model, examples) are usually listed above
_NOT_PLAIN = re.compile(r"[^\w ,.:()/+=-]")


def format_text(graph: LineageGraph) -> str:
    """Return one line per node. A node that was listed above is repeated without its sources."""
    lines, listed = [], set()
    waiting = [(graph.root, "", 0)]
    while waiting:
        node_id, label, depth = waiting.pop()
        node = graph.nodes[node_id]
        start = f"{_INDENT * depth}{f'{label}: ' if label else ''}{node.title}"
        if node_id in listed:
            lines.append(f"{start} ({node_id.replace(':', ' ')}, see above)")
            continue
        listed.add(node_id)
        lines.append(escape(f"{start}: {'; '.join(node.lines)}" if node.lines else start))
        below = [(source, label) for (source, target), label in graph.labels.items() if target == node_id]
        if node.kind in _CHECKS:
            below = [(source, label) for source, label in below if label or source not in listed]
        below += [(target, "") for target in _final_targets(graph, node_id)]
        waiting += [(other, label, depth + 1) for other, label in reversed(below)]
    return "\n".join([*lines, *map(escape, graph.notes)])


def _final_targets(graph: LineageGraph, node_id: str) -> list[str]:
    """Return the targets of a node from which nothing else was made, such as a check of examples."""
    sources = {source for source, _ in graph.labels}
    targets = [target for source, target in graph.labels if source == node_id]
    return [target for target in targets if target not in sources and target != graph.root]


def format_mermaid(graph: LineageGraph) -> str:
    """Return a flowchart from the data on the left to the version; nodes without files have a dashed border."""
    names = {node_id: f"n{number}" for number, node_id in enumerate(graph.nodes)}
    lines = ["flowchart LR", f"{_INDENT}classDef gone stroke-dasharray: 4 3"]
    for node in graph.nodes.values():
        label = "<br>".join(_escape_label(line) for line in (node.title, *node.lines))
        style = ":::gone" if node.files_gone else ""
        lines.append(f'{_INDENT}{names[node.id]}["{label}"]{style}')
    for (source, target), label in graph.labels.items():
        arrow = f'-- "{_escape_label(label)}" -->' if label else "-->"
        lines.append(f"{_INDENT}{names[source]} {arrow} {names[target]}")
    lines += [f"{_INDENT}%% {_escape_label(note)}" for note in graph.notes]
    return "\n".join(lines)


def _escape_label(text: str) -> str:
    """Replace characters that have a meaning in Mermaid, HTML or Markdown by entities, which Mermaid decodes."""
    return _NOT_PLAIN.sub(lambda match: f"#{ord(match[0])};", text)
