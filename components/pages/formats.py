"""Numbers and names as a page shows them; None is an en dash."""

_MAX_NAME_CHARS = 80
_NOTHING = "–"


def format_count(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:,.0f}"


def format_share(value: float | None) -> str:
    """A share as percent, with few digits; see `format_share_digits`."""
    return _NOTHING if value is None else f"{format_share_digits(value)} %"


def format_percent(value: float | None) -> str:
    """A share as percent, always with one decimal, so that a column of them lines up."""
    return _NOTHING if value is None else f"{100 * value:.1f} %"


def format_number(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.3f}"


def format_signed(value: float | None) -> str:
    """A change; one that three decimals do not show has no sign."""
    if value is None:
        return _NOTHING
    text = f"{value:+.3f}"
    return text if float(text) else "0.000"


def format_share_digits(share: float) -> str:
    """In percent: few digits, but nothing that is there becomes 0, and nothing short of all 100."""
    percent = 100 * share
    if percent <= 0:
        return "0"
    if percent < 0.05:
        return "<0.1"
    if 99.5 <= percent < 100:
        return f"{min(percent, 99.9):.1f}"
    return f"{percent:.0f}" if percent >= 9.95 else f"{percent:.1f}".removesuffix(".0")


def shorten(name: str) -> str:
    """A name that fits a page, whoever made it up."""
    return name if len(name) <= _MAX_NAME_CHARS else name[: _MAX_NAME_CHARS - 1] + "…"
