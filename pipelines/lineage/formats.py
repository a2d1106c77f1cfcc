"""Format the graph as text, as SVG, and as an HTML page. SVG and page load no other files."""

import unicodedata
from html import escape
from pathlib import Path

from detloom.components.pages.load_template import load_template
from detloom.pipelines.lineage.graph import Edge, Kind, LineageGraph, Node
from detloom.pipelines.lineage.layout import Layout, Spot, lay_out

_INDENT = "  "
_CHECKS = ("evaluation", "check")  # their sources (model, examples) are usually listed above
_BOX_WIDTH, _COLUMN_GAP, _ROW_GAP, _MARGIN = 208.0, 66.0, 18.0, 16.0
_TITLE_HEIGHT, _LINE_HEIGHT, _PADDING = 19.0, 15.0, 9.0
_TITLE_COLUMNS, _LINE_COLUMNS = 25, 31  # characters of average width that fit into a box
_MAX_LINES = 4
_WIDE = 1.35  # width of capitals relative to lower-case letters
_GROUPS: dict[Kind, str] = {
    "data": "data",
    "examples": "data",
    "check": "check",
    "config": "setting",
    "weights": "setting",
    "search": "setting",
    "checkpoint": "model",
    "model": "model",
    "evaluation": "check",
    "version": "version",
}
_STYLE = """
.lineage { --ink: #1c2430; --soft: #5a6675; --back: #ffffff; --box: #f6f7f9; --line: #c3cad3;
  --data: #0072b2; --setting: #c26a00; --model: #008a63; --check: #a04a7f; --version: #1c2430; }
@media (prefers-color-scheme: dark) { .lineage { --ink: #e6eaf0; --soft: #9aa7b6; --back: #12161c; --box: #232b36;
  --line: #4a5665; --data: #4fa8e0; --setting: #f0a63c; --model: #34c79a; --check: #d98fbc; --version: #e6eaf0; } }
.lineage text { font-family: system-ui, sans-serif; font-size: 11.5px; fill: var(--ink); }
.lineage .title { font-size: 13px; font-weight: 600; }
.lineage .label { font-size: 10px; fill: var(--soft); stroke: var(--back); stroke-width: 3px; paint-order: stroke; }
.lineage .edge { fill: none; stroke: var(--line); stroke-width: 1.5px; }
.lineage .tip { fill: var(--line); }
.lineage .box { fill: var(--box); stroke: var(--line); }
.lineage .version .box { stroke: var(--version); stroke-width: 2px; }
.lineage .gone .box { stroke-dasharray: 4 3; }
.lineage .gone text { fill: var(--soft); }
.lineage .back { fill: var(--back); }
.lineage .data .mark { fill: var(--data); } .lineage .setting .mark { fill: var(--setting); }
.lineage .model .mark { fill: var(--model); } .lineage .check .mark { fill: var(--check); }
.lineage .version .mark { fill: var(--version); }
"""
_STYLE_ON_PAGE = ".lineage { --back: var(--card); }\n"  # the background in page.html.j2
_TEMPLATE = "lineage.html.j2"


def format_text(graph: LineageGraph) -> str:
    """Return one line per node. A node that was listed above is repeated without its sources."""
    nodes = {node.node_id: node for node in graph.nodes}
    lines, listed = [], set()
    waiting = [(graph.root, "", 0)]
    while waiting:
        node_id, label, depth = waiting.pop()
        node = nodes[node_id]
        start = f"{_INDENT * depth}{f'{label}: ' if label else ''}{node.title}"
        if node_id in listed:
            lines.append(f"{start} ({node_id.replace(':', ' ')}, see above)")
            continue
        listed.add(node_id)
        lines.append(f"{start}: {'; '.join(node.lines)}" if node.lines else start)
        below = [edge for edge in graph.edges if edge.target == node_id]
        if node.kind in _CHECKS:
            below = [edge for edge in below if edge.label or edge.source not in listed]
        sources = [(edge.source, edge.label, depth + 1) for edge in below]
        waiting += reversed([*sources, *((each, "", depth + 1) for each in _ends(graph, node_id))])
    return "\n".join([*lines, *graph.notes])


def _ends(graph: LineageGraph, node_id: str) -> list[str]:
    """Return the targets of a node that are the source of nothing, such as a check of examples."""
    leading = {edge.source for edge in graph.edges}
    return [
        edge.target
        for edge in graph.edges
        if edge.source == node_id and edge.target not in leading and edge.target != graph.root
    ]


def format_svg(graph: LineageGraph, *, is_page: bool = False) -> str:
    """Return the drawing in its natural size; the same graph gives the same bytes.

    Args:
        is_page: for use in a page, which scales it and has a background of its own.
    """
    texts = {node.node_id: _fit_lines(node.lines) for node in graph.nodes}
    heights = {name: _TITLE_HEIGHT + _LINE_HEIGHT * len(lines) + 2 * _PADDING for name, lines in texts.items()}
    layout = lay_out(
        heights,
        [(edge.source, edge.target) for edge in graph.edges],
        graph.root,
        box_width=_BOX_WIDTH,
        column_gap=_COLUMN_GAP,
        row_gap=_ROW_GAP,
    )
    width, height = layout.width + 2 * _MARGIN, layout.height + 2 * _MARGIN
    size = (
        f'style="width: 100%; height: auto; min-width: {0.8 * width:.0f}px; max-width: {width:.0f}px"'
        if is_page
        else f'width="{width:.0f}" height="{height:.0f}"'
    )
    title = next(node.title for node in graph.nodes if node.node_id == graph.root)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" {size} class="lineage" '
        f'role="img" aria-label="{_text(f"Lineage of {title}")}">',
        f"<style>{_STYLE}{_STYLE_ON_PAGE if is_page else ''}</style>",
        '<defs><marker id="lineage-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path class="tip" d="M0,0 L8,4 L0,8 Z"/></marker></defs>',
        *([] if is_page else [f'<rect class="back" width="{width:.0f}" height="{height:.0f}"/>']),
        f'<g transform="translate({_MARGIN:.0f} {_MARGIN:.0f})">',
        *(_draw_edge(edge, layout) for edge in graph.edges),
        *(_draw_label(edge, layout) for edge in graph.edges if edge.label),
        *(_draw_node(node, texts[node.node_id], layout.spots[node.node_id]) for node in graph.nodes),
        "</g>",
        "</svg>",
        "",
    ]
    return "\n".join(parts)


def _draw_edge(edge: Edge, layout: Layout) -> str:
    points = layout.routes[edge.source, edge.target]
    (x, y), *others = points
    path = [f"M{x:.1f},{y:.1f}"]
    for number, (next_x, next_y) in enumerate(others):
        if number % 2:  # straight through a column
            path.append(f"L{next_x:.1f},{next_y:.1f}")
        else:  # a curve between two columns
            half = (x + next_x) / 2
            path.append(f"C{half:.1f},{y:.1f} {half:.1f},{next_y:.1f} {next_x:.1f},{next_y:.1f}")
        x, y = next_x, next_y
    return f'<path class="edge" marker-end="url(#lineage-tip)" d="{" ".join(path)}"/>'


def _draw_label(edge: Edge, layout: Layout) -> str:
    x, y = layout.routes[edge.source, edge.target][0]
    return f'<text class="label" x="{x + 5:.1f}" y="{y - 4:.1f}">{_text(edge.label)}</text>'


def _draw_node(node: Node, lines: list[str], spot: Spot) -> str:
    height = _TITLE_HEIGHT + _LINE_HEIGHT * len(lines) + 2 * _PADDING
    classes = f"{_GROUPS[node.kind]}{' gone' if node.is_gone else ''}"
    left, baseline = spot.x + 16, spot.y + _PADDING + 12
    parts = [
        f'<g class="{classes}"><title>{_text("; ".join([node.title, *node.lines]))}</title>',
        f'<rect class="box" x="{spot.x:.1f}" y="{spot.y:.1f}" width="{_BOX_WIDTH:.0f}" height="{height:.0f}" rx="8"/>',
        f'<rect class="mark" x="{spot.x + 6:.1f}" y="{spot.y + 8:.1f}" width="3" height="{height - 16:.0f}" rx="1.5"/>',
        f'<text class="title" x="{left:.1f}" y="{baseline:.1f}">{_text(_cut(node.title, _TITLE_COLUMNS))}</text>',
    ]
    for number, line in enumerate(lines):
        y = baseline + _TITLE_HEIGHT - 2 + _LINE_HEIGHT * number
        parts.append(f'<text x="{left:.1f}" y="{y:.1f}">{_text(line)}</text>')
    return "\n".join([*parts, "</g>"])


def _fit_lines(lines: tuple[str, ...]) -> list[str]:
    """Wrap the lines between words to at most four; truncated text ends in an ellipsis."""
    broken: list[str] = []
    for line in lines:
        current = ""
        for word in line.split(" "):
            longer = f"{current} {word}" if current else word
            if current and _columns(longer) > _LINE_COLUMNS:
                broken.append(current)
                current = word
            else:
                current = longer
        broken.append(current)
    if len(broken) > _MAX_LINES:
        broken = [*broken[: _MAX_LINES - 1], f"{broken[_MAX_LINES - 1]} …"]
    return [_cut(line, _LINE_COLUMNS) for line in broken]


def _cut(text: str, columns: float) -> str:
    if _columns(text) <= columns:
        return text
    kept = text
    while kept and _columns(kept) > columns - 1:
        kept = kept[:-1]
    return f"{kept.rstrip()}…"


def _columns(text: str) -> float:
    """Estimate the width of the text in lower-case letters."""
    return sum(
        2.0 if unicodedata.east_asian_width(each) in "WF" else _WIDE if each.isupper() or each in "mwMW@%" else 1.0
        for each in text
    )


def _text(text: str) -> str:
    """Escape the text and replace characters that XML does not allow."""
    allowed = "".join(each if each.isprintable() or each == " " else "\N{REPLACEMENT CHARACTER}" for each in text)
    return escape(allowed)


def format_page(graph: LineageGraph) -> str:
    """Return a page that loads no other files; its only script sorts the table."""
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
