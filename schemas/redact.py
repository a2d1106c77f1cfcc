"""Texts for messages and tables: short, on one line, and without what may be a secret."""

import re

MAX_SHOWN = 120  # characters of the user's text
HIDDEN = "(hidden)"
_MAX_READ = 1000  # characters that are looked at; the patterns below need quadratic time
_SECRET_NAME = re.compile("password|passwd|secret|token|credential|api_?key", re.IGNORECASE)
_USER_INFO = re.compile(r"(:/{1,2})[^/@\s'\"]+@")  # user and password of an address, also where a path lost a slash
_QUERY = re.compile(r"([?&][^=&\s'\"]*=)[^&\s'\"]+")  # the values behind an address


def is_secret(name: str) -> bool:
    """Whether the value of a key of that name should not be seen."""
    return _SECRET_NAME.search(name) is not None


def redact(text: str) -> str:
    """The text without secrets in addresses, control characters escaped, cut at `MAX_SHOWN`."""
    text = text[:_MAX_READ]
    text = escape(_QUERY.sub(rf"\1{HIDDEN}", _USER_INFO.sub(rf"\1{HIDDEN}@", text)))
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def escape(text: str) -> str:
    """The text with line ends and control characters as escapes, so that it stays on its line of the terminal."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
