"""The graph as one HTML page: the picture, and below it a table of all that is known."""

from pathlib import Path

from detloom.components.pages.load_template import load_template
from detloom.pipelines.lineage.format_svg import format_svg
from detloom.pipelines.lineage.graph import LineageGraph

_TEMPLATE = "lineage.html.j2"


def format_page(graph: LineageGraph) -> str:
    """A page that fetches nothing; its only script sorts the table."""
    root = next(node for node in graph.nodes if node.node_id == graph.root)
    rows = [
        [{"text": text} for text in (node.title, node.node_id, name, value)]
        for node in graph.nodes
        for name, value in node.facts
    ]
    columns = [{"title": title, "is_number": False} for title in ("What", "Id", "Property", "Value")]
    return load_template(Path(__file__).parent, _TEMPLATE).render(
        title=root.title,
        sentence="; ".join(root.lines),
        svg=format_svg(graph, is_page=True),
        notes=graph.notes,
        columns=columns,
        rows=rows,
    )
