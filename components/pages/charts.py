"""Charts: rows of bars as plain values for the macro `histogram`, and line charts as SVG text."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from detloom.components.pages.formats import format_share_digits

_NUM_BAR_COLORS = 6  # --s0 to --s5 of page.html.j2
_MIN_BAR_PERCENT = 0.7  # still visible


def histogram(title: str, bins: Sequence[str], counts_by_series: Sequence[Sequence[float]]) -> Mapping[str, Any]:
    """Return one row per bin with one bar per series, as shares of the series; omit empty bins at both ends."""
    shares = [[count / (sum(counts) or 1) for count in counts] for counts in counts_by_series]
    filled = [i for i in range(len(bins)) if any(series[i] for series in shares)]
    shown = slice(filled[0], filled[-1] + 1) if filled else slice(0)
    return bars(title, bins[shown], [series[shown] for series in shares])


def bars(title: str, names: Sequence[str], shares_by_series: Sequence[Sequence[float]]) -> Mapping[str, Any]:
    """Return one row per name with one bar per series, all on one scale."""
    largest = max((share for series in shares_by_series for share in series), default=0.0) or 1.0
    rows = []
    for i, name in enumerate(names):
        shares = [series[i] for series in shares_by_series]
        # A share above zero is always wide enough to be visible.
        percents = [max(100 * share / largest, _MIN_BAR_PERCENT) if share > 0 else 0.0 for share in shares]
        widths = [{"percent": percent, "color": k % _NUM_BAR_COLORS} for k, percent in enumerate(percents)]
        rows.append({"name": name, "bars": widths, "text": " / ".join(map(format_share_digits, shares)) + " %"})
    return {"title": title, "rows": rows}


NUM_TICKS = 6  # approximate number per axis


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a chart, with an optional band around it.

    Attributes:
        points: (x, y), ascending in x.
        band: (x, lowest, highest) at some of the points; may be empty.
    """

    name: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]] = ()


@dataclass(frozen=True, kw_only=True)
class Look:
    """Style of a chart: sizes in units of the SVG view box, colours in SVG syntax.

    Attributes:
        left, right, top, bottom: margins around the axes.
        attributes: additional attributes of the svg element.
        background: None is transparent.
        has_names: draw the title and the names of the lines; if False, the page shows them.
    """

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int
    attributes: str
    background: str | None
    grid_color: str
    line_colors: tuple[str, ...]
    has_names: bool


FILE_LOOK = Look(
    width=760,
    height=420,
    left=64,
    right=16,
    top=40,
    bottom=48,
    attributes="",
    background="white",
    grid_color="#dddddd",
    line_colors=("#1f5fa8", "#c2502d", "#4b8b3b", "#7a4fa3", "#8a6d1f", "#1d8a8a", "#b03a7a"),
    has_names=True,
)
# Smaller, so that text stays readable when two charts are side by side; colours follow the page, also in dark mode.
PAGE_LOOK = Look(
    width=480,
    height=300,
    left=64,
    right=24,
    top=12,
    bottom=44,
    attributes=' class="chart" fill="currentColor"',
    background=None,
    grid_color="var(--line)",
    line_colors=tuple(f"var(--s{number})" for number in range(6)),  # defined in page.html.j2, in the legend's order
    has_names=False,
)


def format_svg(
    title: str,
    x_label: str,
    y_label: str,
    lines: Sequence[Line],
    *,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    look: Look = FILE_LOOK,
) -> str:
    """Draw lines and their bands as an SVG chart; all texts are escaped.

    Args:
        x_range, y_range: range of the axis, which must contain all points; None starts at 0.
    """
    first_x, last_x = x_range or (0.0, max((point[0] for line in lines for point in line.points), default=0.0) or 1.0)
    ys = [y for line in lines for _, *values in (*line.points, *line.band) for y in values]
    low, high = y_range or (0.0, max(ys, default=0.0) or 1.0)

    def place(x: float, y: float) -> str:
        across = look.left + (look.width - look.left - look.right) * (x - first_x) / (last_x - first_x)
        down = look.height - look.bottom - (look.height - look.top - look.bottom) * (y - low) / (high - low)
        return f"{across:.1f},{down:.1f}"

    parts = _frame(title, x_label, y_label, look)
    for y in ticks(low, high):
        parts.append(_stroke(f"{place(first_x, y)} {place(last_x, y)}", look.grid_color))
        across, down = map(float, place(first_x, y).split(","))
        parts.append(svg_text(across - 6, down + 4, f"{y:g}", "end"))
    for x in ticks(first_x, last_x):
        across, down = map(float, place(x, low).split(","))
        parts.append(svg_text(across, down + 18, f"{x:g}", "middle"))
    for number, line in enumerate(lines):
        color = look.line_colors[number % len(look.line_colors)]
        if line.band:
            around = [place(x, highest) for x, _, highest in line.band]
            around += [place(x, lowest) for x, lowest, _ in reversed(line.band)]
            parts.append(f'<polygon points="{" ".join(around)}" fill="{color}" fill-opacity="0.18"/>')
        parts.append(_stroke(" ".join(place(x, y) for x, y in line.points), color, 'stroke-width="2"'))
        if look.has_names:
            parts.append(
                svg_text(look.left + 8, look.top - 6 + 16 * number + 14, line.name, "start", f'fill="{color}"')
            )
    return "\n".join([*parts, "</svg>", ""])


def ticks(low: float, high: float) -> list[float]:
    """Return round numbers from `low` to `high`: multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / NUM_TICKS
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _frame(title: str, x_label: str, y_label: str, look: Look) -> list[str]:
    """Draw the surroundings of the axes; a title that is not drawn becomes a label for screen readers."""
    attributes = look.attributes if look.has_names else f'{look.attributes} role="img" aria-label="{escape(title)}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {look.width} {look.height}"',
        f' font-family="sans-serif" font-size="12"{attributes}>',
    ]
    if look.background is not None:
        parts.append(f'<rect width="{look.width}" height="{look.height}" fill="{look.background}"/>')
    if look.has_names:
        parts.append(svg_text(look.width / 2, 16, title, "middle", 'font-size="14"'))
    middle_y = (look.top + look.height - look.bottom) / 2
    return [
        *parts,
        svg_text((look.left + look.width - look.right) / 2, look.height - 10, x_label, "middle"),
        svg_text(14, middle_y, y_label, "middle", f'transform="rotate(-90 14 {middle_y})"'),
    ]


def _stroke(points: str, color: str, more: str = "") -> str:
    return f'<polyline points="{points}" fill="none" stroke="{color}" {more}/>'


def svg_text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(text)}</text>'
