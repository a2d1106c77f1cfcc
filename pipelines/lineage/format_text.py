"""The graph as short text: the version, and below each thing, indented, what it came from."""

from detloom.pipelines.lineage.graph import LineageGraph

_INDENT = "  "
_LOOKERS = ("evaluation", "check")  # they look at the model and the examples that stand above


def format_text(graph: LineageGraph) -> str:
    """A line a thing; what was said above is named again, but not what is below it."""
    nodes = {node.node_id: node for node in graph.nodes}
    lines, said = [], set()
    waiting = [(graph.root, "", 0)]
    while waiting:
        node_id, label, depth = waiting.pop()
        node = nodes[node_id]
        start = f"{_INDENT * depth}{f'{label}: ' if label else ''}{node.title}"
        if node_id in said:
            lines.append(f"{start} ({node_id.replace(':', ' ')}, see above)")
            continue
        said.add(node_id)
        lines.append(f"{start}: {'; '.join(node.lines)}" if node.lines else start)
        below = [edge for edge in graph.edges if edge.target == node_id]
        if node.kind in _LOOKERS:
            below = [edge for edge in below if edge.label or edge.source not in said]
        sources = [(edge.source, edge.label, depth + 1) for edge in below]
        waiting += reversed([*sources, *((each, "", depth + 1) for each in _ends(graph, node_id))])
    return "\n".join([*lines, *graph.notes])


def _ends(graph: LineageGraph, node_id: str) -> list[str]:
    """What was made of a thing and led nowhere, such as a check of examples."""
    leading = {edge.source for edge in graph.edges}
    return [
        edge.target
        for edge in graph.edges
        if edge.source == node_id and edge.target not in leading and edge.target != graph.root
    ]
