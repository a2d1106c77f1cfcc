"""What the macro `histogram` draws: rows of bars. Plain values."""

from collections.abc import Mapping, Sequence
from typing import Any

from detloom.components.pages.formats import format_share_digits

_NUM_COLORS = 6  # --s0 to --s5 of page.html.j2
_LEAST_WIDTH_PERCENT = 0.7  # can still be seen


def histogram(title: str, bins: Sequence[str], counts_by_series: Sequence[Sequence[float]]) -> Mapping[str, Any]:
    """A row a bin with a bar for each series, as shares of the series; empty bins at both ends are left out."""
    shares = [[count / (sum(counts) or 1) for count in counts] for counts in counts_by_series]
    filled = [i for i in range(len(bins)) if any(series[i] for series in shares)]
    shown = slice(filled[0], filled[-1] + 1) if filled else slice(0)
    return bars(title, bins[shown], [series[shown] for series in shares])


def bars(title: str, names: Sequence[str], shares_by_series: Sequence[Sequence[float]]) -> Mapping[str, Any]:
    """A row a name with a bar for each series, all on one scale."""
    largest = max((share for series in shares_by_series for share in series), default=0.0) or 1.0
    rows = []
    for i, name in enumerate(names):
        shares = [series[i] for series in shares_by_series]
        widths = [{"percent": _bar_width(share / largest), "color": k % _NUM_COLORS} for k, share in enumerate(shares)]
        rows.append({"name": name, "bars": widths, "text": " / ".join(map(format_share_digits, shares)) + " %"})
    return {"title": title, "rows": rows}


def _bar_width(share_of_largest: float) -> float:
    """In percent; the least that can be seen for what is there at all."""
    return max(100 * share_of_largest, _LEAST_WIDTH_PERCENT) if share_of_largest > 0 else 0.0
