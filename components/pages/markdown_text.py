"""Text of strangers in Markdown: names of classes, of images, of features."""

import re

from detloom.schemas.redact import escape

_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_MARKS = re.compile(r"([\\|`*_~$\[\]])")
_AT_THE_START = re.compile(r"^(\d{1,9}(?=[.)])|[-+#=:])")  # of a list, a heading, a rule, a definition


def escape_markdown(text: str) -> str:
    """On one line, as text and nothing else, in a table too; unprintable characters are shown as escapes.

    What GitHub makes of bare addresses and mentions stays what it is.
    """
    text = escape(" ".join(text.split()))
    for mark, entity in _ENTITIES.items():
        text = text.replace(mark, entity)
    return _MARKS.sub(r"\\\1", text)


def escape_markdown_line(text: str) -> str:
    """As `escape_markdown`, of what begins a line."""
    return _AT_THE_START.sub(lambda match: _escape_start(match.group()), escape_markdown(text))


def _escape_start(found: str) -> str:
    return f"{found}\\" if found[0].isdigit() else f"\\{found}"
