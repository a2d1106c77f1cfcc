"""Line charts as SVG text, for the plots of the benchmarks; standard library alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 40, 48  # margins around the axes
COLORS = ("#1f5fa8", "#c2502d", "#4b8b3b", "#7a4fa3", "#8a6d1f")
NUM_TICKS = 6  # about so many an axis


@dataclass(frozen=True, kw_only=True)
class Line:
    """`points` are (x, y), rising in x; `band` are (x, lowest, highest) at some of them, and may be empty."""

    name: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]] = ()


def format_svg(
    title: str,
    x_label: str,
    y_label: str,
    lines: Sequence[Line],
    *,
    y_range: tuple[float, float] | None = None,
    marked_ys: Sequence[float] = (),
) -> str:
    """A picture of the lines, their bands and their names; y starts at 0 unless `y_range` says otherwise.

    `marked_ys` are drawn dashed across it, such as a goal.
    """
    highest_x = max((point[0] for line in lines for point in line.points), default=0.0) or 1.0
    ys = [y for line in lines for _, *values in (*line.points, *line.band) for y in values]
    low, high = y_range or (0.0, max((*ys, *marked_ys), default=0.0) or 1.0)

    def place(x: float, y: float) -> str:
        across = LEFT + (WIDTH - LEFT - RIGHT) * x / highest_x
        down = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (y - low) / (high - low)
        return f"{across:.1f},{down:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(WIDTH / 2, 16, title, "middle", 'font-size="14"'),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x_label, "middle"),
        _text(14, (TOP + HEIGHT - BOTTOM) / 2, y_label, "middle", f'transform="rotate(-90 14 {HEIGHT / 2})"'),
    ]
    for y in ticks(low, high):
        parts.append(_stroke(f"{place(0, y)} {place(highest_x, y)}", "#dddddd"))
        across, down = map(float, place(0, y).split(","))
        parts.append(_text(across - 6, down + 4, f"{y:g}", "end"))
    for x in ticks(0, highest_x):
        across, down = map(float, place(x, low).split(","))
        parts.append(_text(across, down + 18, f"{x:g}", "middle"))
    parts += [_stroke(f"{place(0, y)} {place(highest_x, y)}", "#555555", 'stroke-dasharray="5 4"') for y in marked_ys]
    for number, line in enumerate(lines):
        color = COLORS[number % len(COLORS)]
        if line.band:
            around = [place(x, highest) for x, _, highest in line.band]
            around += [place(x, lowest) for x, lowest, _ in reversed(line.band)]
            parts.append(f'<polygon points="{" ".join(around)}" fill="{color}" fill-opacity="0.18"/>')
        parts.append(_stroke(" ".join(place(x, y) for x, y in line.points), color, 'stroke-width="2"'))
        parts.append(_text(LEFT + 8, TOP - 6 + 16 * number + 14, line.name, "start", f'fill="{color}"'))
    return "\n".join([*parts, "</svg>", ""])


def ticks(low: float, high: float) -> list[float]:
    """Round numbers from `low` to `high`: multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / NUM_TICKS
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _stroke(points: str, color: str, more: str = "") -> str:
    return f'<polyline points="{points}" fill="none" stroke="{color}" {more}/>'


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(text)}</text>'
