"""Format numbers, names, untrusted text and images for a page; a number that is None becomes an en dash."""

import base64
import io
import re
from typing import TYPE_CHECKING

from detloom.schemas.reading.redact import escape

if TYPE_CHECKING:
    from PIL.Image import Image

VERDICT_TEXTS = {
    "passed": "✓ passed",
    "warned": "! warned",
    "failed": "✗ failed",
    "off": "off",
    "skipped": "– skipped",
    "waived": "✗ waived",
}
_MAX_NAME_CHARS = 80
_MISSING = "–"
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_MARKS = re.compile(r"([\\|`*_~$\[\]])")
_LINE_START = re.compile(r"^(\d{1,9}(?=[.)])|[-+#=:])")  # starts a list, a heading, a rule or a definition


def format_count(value: float | None) -> str:
    return _MISSING if value is None else f"{value:,.0f}"


def format_share(value: float | None) -> str:
    """Format a share as a percentage with few digits; see `format_share_digits`."""
    return _MISSING if value is None else f"{format_share_digits(value)} %"


def format_percent(value: float | None) -> str:
    """Format a share as a percentage with exactly one decimal, so that the numbers of a column line up."""
    return _MISSING if value is None else f"{100 * value:.1f} %"


def format_number(value: float | None) -> str:
    return _MISSING if value is None else f"{value:.3f}"


def format_signed(value: float | None) -> str:
    """Format a change with its sign; a change that rounds to zero has no sign."""
    if value is None:
        return _MISSING
    text = f"{value:+.3f}"
    return text if float(text) else "0.000"


def format_share_digits(share: float) -> str:
    """Format a share in percent with few digits; only 0 becomes "0", and only 1 becomes "100"."""
    percent = 100 * share
    if percent <= 0:
        return "0"
    if percent < 0.05:
        return "<0.1"
    if 99.5 <= percent < 100:
        return f"{min(percent, 99.9):.1f}"
    return f"{percent:.0f}" if percent >= 9.95 else f"{percent:.1f}".removesuffix(".0")


def shorten(name: str) -> str:
    """Cut a name that is too long for a page; names come from the data and can have any length."""
    return name if len(name) <= _MAX_NAME_CHARS else name[: _MAX_NAME_CHARS - 1] + "…"


def escape_markdown(text: str) -> str:
    """Return the text on one line without Markdown meaning, also in a table; escape unprintable characters.

    GitHub still links bare URLs and mentions.
    """
    text = escape(" ".join(text.split()))
    for mark, entity in _ENTITIES.items():
        text = text.replace(mark, entity)
    return _MARKS.sub(r"\\\1", text)


def escape_markdown_line(text: str) -> str:
    """Escape text at the start of a line; see `escape_markdown`."""
    return _LINE_START.sub(lambda match: _escape_start(match.group()), escape_markdown(text))


def _escape_start(found: str) -> str:
    return f"{found}\\" if found[0].isdigit() else f"\\{found}"


def jpeg_data_uri(image: "Image", quality: int) -> str:
    """Encode an image as JPEG in a data URI."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii")
