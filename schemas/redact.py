"""Texts for messages and tables: short, on one line, and without what may be a secret."""

import re

MAX_SHOWN = 120  # characters of the user's text
HIDDEN = "(hidden)"
_SECRET_NAME = re.compile("password|passwd|secret|token|credential|api_?key|webhook|authorization", re.IGNORECASE)
# User and password of an address, also where a path lost a slash, and where the password holds an @ or a /.
_USER_INFO = re.compile(r"(:/{1,2})(?:[^/\s'\"]+|[^/\s'\":]+:[^\s'\"]*)@")
_QUERY = re.compile(r"([?&][^?=&\s'\"]*=)[^&\s'\"]+")  # the values behind an address
_WORD = re.compile(r"[^\s'\"]+")


def is_secret(name: str) -> bool:
    """Whether the value of a key of that name should not be seen."""
    return _SECRET_NAME.search(name) is not None


def hide_secrets(text: str) -> str:
    """The text without what stands in an address before the @ and behind the ?; nothing is cut or escaped."""
    return _QUERY.sub(rf"\1{HIDDEN}", _WORD.sub(_hide_user_info, text))


def _hide_user_info(word: re.Match[str]) -> str:
    """Behind the last @ nothing is looked for: that would take quadratic time."""
    head, at, tail = word[0].rpartition("@")
    return _USER_INFO.sub(rf"\1{HIDDEN}@", head + at) + tail


def redact(text: str) -> str:
    """The text without secrets in addresses, control characters escaped, cut at `MAX_SHOWN`."""
    text = escape(hide_secrets(text))
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def show_address(text: str) -> str:
    """A path or an address as a whole, for somebody who will open it: without secrets, on one line."""
    return escape(hide_secrets(text))


def escape(text: str) -> str:
    """The text with line ends and control characters as escapes, so that it stays on its line of the terminal."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
