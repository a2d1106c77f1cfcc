"""Where the boxes of a graph lie: columns from left to right, few crossings. No names, no colours, no I/O.

The steps are those of Sugiyama, Tagawa and Toda (1981): layers by the longest path, invisible boxes where an edge
passes a layer, order by barycentres; then heights, each box as near to its neighbours' mean as order and gaps allow.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_NUM_SWEEPS = 12  # there and back; small graphs settle after three or four
_PASSING_HEIGHT = 10.0  # of the invisible boxes

Slot = tuple[str, int]  # a box, or with its edge's name and its layer, an invisible one


@dataclass(frozen=True, kw_only=True)
class Spot:
    """Upper left corner of a box, in units of the picture."""

    x: float
    y: float


@dataclass(frozen=True, kw_only=True)
class Layout:
    """`routes` are the points of each edge: out of its source, through the layers that it passes, into its target."""

    spots: dict[str, Spot]
    routes: dict[tuple[str, str], list[tuple[float, float]]]
    width: float
    height: float


def lay_out(
    heights: Mapping[str, float],
    edges: Sequence[tuple[str, str]],
    root: str,
    *,
    box_width: float,
    column_gap: float,
    row_gap: float,
) -> Layout:
    """Place boxes of these heights; the root is in the last column of what leads to it.

    The same graph gives the same layout: ties are broken by the order of `heights`.

    Args:
        edges: (source, target); there is no circle.
    """
    layers = assign_layers(list(heights), edges, root)
    columns, neighbours = _with_passing_boxes(list(heights), edges, layers)
    order = _order(columns, neighbours)
    slot_heights = {slot: heights[slot[0]] if slot[1] < 0 else _PASSING_HEIGHT for column in order for slot in column}
    tops = _place(order, neighbours, slot_heights, row_gap)
    pitch = box_width + column_gap
    spots = {name: Spot(x=layers[name] * pitch, y=tops[(name, -1)]) for name in heights}
    passing = {}
    for source, target in edges:
        points = []
        for layer in range(layers[source] + 1, layers[target]):
            y = tops[_edge_name(source, target), layer] + _PASSING_HEIGHT / 2
            points += [(layer * pitch, y), (layer * pitch + box_width, y)]
        passing[source, target] = points
    routes = _attach(passing, spots, heights, box_width)
    return Layout(
        spots=spots,
        routes=routes,
        width=max(layers.values()) * pitch + box_width,
        height=max(top + slot_heights[slot] for slot, top in tops.items()),
    )


def _attach(
    passing: Mapping[tuple[str, str], list[tuple[float, float]]],
    spots: Mapping[str, Spot],
    heights: Mapping[str, float],
    box_width: float,
) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Ends for the edges: those of a side are spread over it, in the order of where they come from or go to."""

    def middle(name: str) -> float:
        return spots[name].y + heights[name] / 2

    def ends(is_out: bool) -> dict[tuple[str, str], float]:
        sides: dict[str, list[tuple[float, tuple[str, str]]]] = {}
        for edge, points in passing.items():
            mine, other = edge if is_out else edge[::-1]
            away = points[0 if is_out else -1][1] if points else middle(other)
            sides.setdefault(mine, []).append((away, edge))
        found = {}
        for name, side in sides.items():
            for number, (_, edge) in enumerate(sorted(side, key=lambda each: each[0]), start=1):
                found[edge] = spots[name].y + heights[name] * number / (len(side) + 1)
        return found

    starts, stops = ends(True), ends(False)
    return {
        edge: [
            (spots[edge[0]].x + box_width, starts[edge]),
            *points,
            (spots[edge[1]].x, stops[edge]),
        ]
        for edge, points in passing.items()
    }


def assign_layers(names: Sequence[str], edges: Sequence[tuple[str, str]], root: str) -> dict[str, int]:
    """Column of each box, from 0. What leads to the root is as far right as it can be; the rest follows its sources."""
    sources: dict[str, list[str]] = {name: [] for name in names}
    targets: dict[str, list[str]] = {name: [] for name in names}
    for source, target in edges:
        sources[target].append(source)
        targets[source].append(target)
    forward = _topological(names, sources)
    to_root = {root: 0}
    for name in reversed(forward):
        distances = [to_root[target] + 1 for target in targets[name] if target in to_root]
        if distances and name != root:
            to_root[name] = max(distances)
    last = max(to_root.values())
    layers: dict[str, int] = {}
    for name in forward:
        behind = max((layers[source] + 1 for source in sources[name]), default=0)
        layers[name] = last - to_root[name] if name in to_root else behind
    return {name: layers[name] for name in names}


def _topological(names: Sequence[str], sources: Mapping[str, Sequence[str]]) -> list[str]:
    """Each after all of its sources."""
    done: dict[str, None] = {}
    waiting = list(reversed(names))
    while waiting:
        name = waiting[-1]
        missing = [source for source in sources[name] if source not in done]
        if missing:
            waiting += missing
        else:
            done[waiting.pop()] = None
    return list(done)


def _edge_name(source: str, target: str) -> str:
    return f"{source}\0{target}"


def _with_passing_boxes(
    names: Sequence[str], edges: Sequence[tuple[str, str]], layers: Mapping[str, int]
) -> tuple[list[list[Slot]], dict[Slot, list[Slot]]]:
    """Slots by column, and of each slot its neighbours one column away, on both sides."""
    columns: list[list[Slot]] = [[] for _ in range(max(layers.values()) + 1)]
    for name in names:
        columns[layers[name]].append((name, -1))
    neighbours: dict[Slot, list[Slot]] = {slot: [] for column in columns for slot in column}
    for source, target in edges:
        passing = [(_edge_name(source, target), layer) for layer in range(layers[source] + 1, layers[target])]
        for slot in passing:
            columns[slot[1]].append(slot)
            neighbours[slot] = []
        chain = [(source, -1), *passing, (target, -1)]
        for left, right in itertools.pairwise(chain):
            neighbours[left].append(right)
            neighbours[right].append(left)
    return columns, neighbours


def _order(columns: list[list[Slot]], neighbours: Mapping[Slot, Sequence[Slot]]) -> list[list[Slot]]:
    """The order with the fewest crossings that sweeps by barycentre come across."""
    current = [list(column) for column in columns]
    best, fewest = current, _count_crossings(current, neighbours)
    for sweep in range(_NUM_SWEEPS):
        current = [list(column) for column in current]
        numbers = range(1, len(current)) if sweep % 2 == 0 else range(len(current) - 2, -1, -1)
        for number in numbers:
            beside = {slot: at for at, slot in enumerate(current[number - 1 if sweep % 2 == 0 else number + 1])}
            places = {slot: at for at, slot in enumerate(current[number])}
            current[number].sort(key=lambda slot: _barycentre(slot, neighbours, beside, places))
        crossings = _count_crossings(current, neighbours)
        if crossings < fewest:
            best, fewest = current, crossings
    return best


def _barycentre(
    slot: Slot, neighbours: Mapping[Slot, Sequence[Slot]], beside: Mapping[Slot, int], places: Mapping[Slot, int]
) -> float:
    found = [beside[each] for each in neighbours[slot] if each in beside]
    return sum(found) / len(found) if found else places[slot]


def _count_crossings(columns: Sequence[Sequence[Slot]], neighbours: Mapping[Slot, Sequence[Slot]]) -> int:
    total = 0
    for left, right in itertools.pairwise(columns):
        places = {slot: at for at, slot in enumerate(right)}
        ends = [(at, places[each]) for at, slot in enumerate(left) for each in neighbours[slot] if each in places]
        total += sum((a - c) * (b - d) < 0 for number, (a, b) in enumerate(ends) for c, d in ends[number + 1 :])
    return total


def _place(
    columns: Sequence[Sequence[Slot]],
    neighbours: Mapping[Slot, Sequence[Slot]],
    heights: Mapping[Slot, float],
    gap: float,
) -> dict[Slot, float]:
    """Top of each slot; the topmost is at 0."""
    middles: dict[Slot, float] = {}
    for column in columns:
        top = 0.0
        for slot in column:
            middles[slot] = top + heights[slot] / 2
            top += heights[slot] + gap
    for sweep in range(_NUM_SWEEPS):
        for column in columns if sweep % 2 == 0 else reversed(columns):
            wanted = [
                sum(middles[each] for each in near) / len(near) if (near := neighbours[slot]) else middles[slot]
                for slot in column
            ]
            middles |= zip(column, _spread(wanted, [heights[slot] for slot in column], gap), strict=True)
    tops = {slot: middle - heights[slot] / 2 for slot, middle in middles.items()}
    highest = min(tops.values())
    return {slot: top - highest for slot, top in tops.items()}


def _spread(wanted: Sequence[float], heights: Sequence[float], gap: float) -> list[float]:
    """Middles nearest to the wanted ones (least squares) in this order and at least a gap apart.

    Less the room that is needed above each, this is isotonic regression: neighbours in the wrong order are pooled.
    """
    room, needed = 0.0, []
    for number, height in enumerate(heights):
        room += height / 2 + (heights[number - 1] / 2 + gap if number else 0)
        needed.append(room)
    pools: list[tuple[float, int]] = []  # mean, and how many
    for middle, above in zip(wanted, needed, strict=True):
        mean, count = middle - above, 1
        while pools and pools[-1][0] >= mean:
            before, num_before = pools.pop()
            mean, count = (before * num_before + mean * count) / (num_before + count), count + num_before
        pools.append((mean, count))
    means = [mean for mean, count in pools for _ in range(count)]
    return [mean + above for mean, above in zip(means, needed, strict=True)]
