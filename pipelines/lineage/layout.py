"""Place the boxes of a graph in columns from left to right with few crossings.

The steps are those of Sugiyama, Tagawa and Toda (1981): layers by the longest path, invisible boxes where an edge
passes a layer, order by barycenters, then vertical positions, each box as near to the mean of its neighbors as order
and gaps allow.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_NUM_SWEEPS = 12  # forward and backward; small graphs converge after three or four
_PASSING_HEIGHT = 10.0  # of the invisible boxes

Slot = tuple[str, int]  # (box, -1), or (edge, layer) for an invisible box


@dataclass(frozen=True, kw_only=True)
class Spot:
    """Upper left corner of a box, in units of the drawing."""

    x: float
    y: float


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Positions of boxes and edges. `routes` has the points of each edge from its source to its target."""

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
    """Place boxes of these heights. The root is right of everything that leads to it.

    The same graph gives the same layout: ties are broken by the order of `heights`.

    Args:
        edges: (source, target), without a cycle.
    """
    layers = assign_layers(list(heights), edges, root)
    columns, neighbors = _with_passing_boxes(list(heights), edges, layers)
    order = _order(columns, neighbors)
    slot_heights = {slot: heights[slot[0]] if slot[1] < 0 else _PASSING_HEIGHT for column in order for slot in column}
    tops = _place(order, neighbors, slot_heights, row_gap)
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
    """Add the end points of the edges. Those at one side of a box are spread evenly, ordered by their other ends."""

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
    """Return the column of each box, from 0. Ancestors of the root are as far right as possible."""
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
    """Return the names in topological order, sources first."""
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
    """Return the slots of each column, and for each slot its neighbors in the columns next to it."""
    columns: list[list[Slot]] = [[] for _ in range(max(layers.values()) + 1)]
    for name in names:
        columns[layers[name]].append((name, -1))
    neighbors: dict[Slot, list[Slot]] = {slot: [] for column in columns for slot in column}
    for source, target in edges:
        passing = [(_edge_name(source, target), layer) for layer in range(layers[source] + 1, layers[target])]
        for slot in passing:
            columns[slot[1]].append(slot)
            neighbors[slot] = []
        chain = [(source, -1), *passing, (target, -1)]
        for left, right in itertools.pairwise(chain):
            neighbors[left].append(right)
            neighbors[right].append(left)
    return columns, neighbors


def _order(columns: list[list[Slot]], neighbors: Mapping[Slot, Sequence[Slot]]) -> list[list[Slot]]:
    """Return the order with the fewest crossings found by barycenter sweeps."""
    current = [list(column) for column in columns]
    best, fewest = current, _count_crossings(current, neighbors)
    for sweep in range(_NUM_SWEEPS):
        current = [list(column) for column in current]
        numbers = range(1, len(current)) if sweep % 2 == 0 else range(len(current) - 2, -1, -1)
        for number in numbers:
            beside = {slot: at for at, slot in enumerate(current[number - 1 if sweep % 2 == 0 else number + 1])}
            places = {slot: at for at, slot in enumerate(current[number])}
            current[number].sort(key=lambda slot: _barycenter(slot, neighbors, beside, places))
        crossings = _count_crossings(current, neighbors)
        if crossings < fewest:
            best, fewest = current, crossings
    return best


def _barycenter(
    slot: Slot, neighbors: Mapping[Slot, Sequence[Slot]], beside: Mapping[Slot, int], places: Mapping[Slot, int]
) -> float:
    found = [beside[each] for each in neighbors[slot] if each in beside]
    return sum(found) / len(found) if found else places[slot]


def _count_crossings(columns: Sequence[Sequence[Slot]], neighbors: Mapping[Slot, Sequence[Slot]]) -> int:
    total = 0
    for left, right in itertools.pairwise(columns):
        places = {slot: at for at, slot in enumerate(right)}
        ends = [(at, places[each]) for at, slot in enumerate(left) for each in neighbors[slot] if each in places]
        total += sum((a - c) * (b - d) < 0 for number, (a, b) in enumerate(ends) for c, d in ends[number + 1 :])
    return total


def _place(
    columns: Sequence[Sequence[Slot]],
    neighbors: Mapping[Slot, Sequence[Slot]],
    heights: Mapping[Slot, float],
    gap: float,
) -> dict[Slot, float]:
    """Return the top of each slot; the smallest is 0."""
    middles: dict[Slot, float] = {}
    for column in columns:
        top = 0.0
        for slot in column:
            middles[slot] = top + heights[slot] / 2
            top += heights[slot] + gap
    for sweep in range(_NUM_SWEEPS):
        for column in columns if sweep % 2 == 0 else reversed(columns):
            wanted = [
                sum(middles[each] for each in near) / len(near) if (near := neighbors[slot]) else middles[slot]
                for slot in column
            ]
            middles |= zip(column, _spread(wanted, [heights[slot] for slot in column], gap), strict=True)
    tops = {slot: middle - heights[slot] / 2 for slot, middle in middles.items()}
    highest = min(tops.values())
    return {slot: top - highest for slot, top in tops.items()}


def _spread(wanted: Sequence[float], heights: Sequence[float], gap: float) -> list[float]:
    """Return the middles closest to the wanted ones (least squares) that keep this order and the gap.

    After subtracting the space needed above each slot, this is isotonic regression by pooling adjacent violators.
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
