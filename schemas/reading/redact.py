"""Secrets: hide possible secrets in messages and tables, and parse references to secrets.

A run file, and every file made from it, contains references and never the secret itself.
"""

import re
from dataclasses import dataclass
from typing import Literal

from detloom.schemas.errors import FieldError, InputError

MAX_SHOWN = 120  # characters of the user's text
HIDDEN = "(hidden)"
_SECRET_NAME = re.compile("password|passwd|secret|token|credential|api_?key|webhook|authorization", re.IGNORECASE)
# User and password of an address, also with a single slash, and with an @ or a / in the password.
_USER_INFO = re.compile(r"(:/{1,2})(?:[^/\s'\"]+|[^/\s'\":]+:[^\s'\"]*)@")
# Values in the query and the fragment of an address; #sha256= is not secret.
_QUERY = re.compile(r"([?&#](?!sha256=)[^?=&#\s'\"]*=)[^&#\s'\"]+")
_WORD = re.compile(r"[^\s'\"]+")


def is_secret(name: str) -> bool:
    """Return True if the value of a key with this name may be a secret."""
    return _SECRET_NAME.search(name) is not None


def hide_secrets(text: str) -> str:
    """Hide user, password and query values of addresses; do not shorten or escape the text."""
    return _QUERY.sub(rf"\1{HIDDEN}", _WORD.sub(_hide_user_info, text))


def _hide_user_info(word: re.Match[str]) -> str:
    """Search only before the last @; a search behind it would take quadratic time."""
    head, at, tail = word[0].rpartition("@")
    return _USER_INFO.sub(rf"\1{HIDDEN}@", head + at) + tail


def redact(text: str) -> str:
    """Hide secrets in addresses, escape control characters, and cut the text at `MAX_SHOWN` characters."""
    text = escape(hide_secrets(text))
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def show_address(text: str) -> str:
    """Return a path or an address in full length, on one line, without secrets."""
    return escape(hide_secrets(text))


def escape(text: str) -> str:
    """Escape line breaks and control characters, so that the text stays on one line of the terminal."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def escape_lines(text: str) -> str:
    """Escape as `escape`, but keep line breaks; indent further lines, so that none looks like another message."""
    return "\n  ".join(map(escape, text.split("\n")))


# --- references -------------------------------------------------------------------------------------------------------

SecretKind = Literal["env", "kubernetes", "secret_manager"]
ALLOWED_REFERENCES = "env:NAME, kubernetes:SECRET/KEY or secret_manager:projects/PROJECT/secrets/NAME/versions/VERSION"
_FORMS: dict[SecretKind, re.Pattern[str]] = {
    "env": re.compile(r"([A-Za-z_][A-Za-z0-9_]*)"),
    "kubernetes": re.compile(r"([a-z0-9][a-z0-9.-]{0,252})/([A-Za-z0-9._-]{1,253})"),
    "secret_manager": re.compile(r"(projects/[a-z0-9:.-]+/secrets/[A-Za-z0-9_-]{1,255}/versions/(?:latest|[0-9]+))"),
}


@dataclass(frozen=True, kw_only=True)
class SecretReference:
    """The location of a secret.

    Attributes:
        name: name of the environment variable, the Kubernetes secret, or the version in Google's Secret Manager.
        key: key inside a Kubernetes secret.
    """

    kind: SecretKind
    name: str
    key: str = ""


def parse_secret_reference(text: str) -> SecretReference:
    """Parse "kind:name".

    Raises:
        InputError: its message omits the text, which may be the secret itself.
    """
    kind, _, rest = text.partition(":")
    for known, form in _FORMS.items():
        match = form.fullmatch(rest)
        if kind == known and match is not None:
            return SecretReference(kind=known, name=match[1], key=match[2] if form.groups > 1 else "")
    raise InputError(f"got a text that is not a reference to a secret, allowed: {ALLOWED_REFERENCES}.")


def check_secret_reference(field: str, text: str) -> None:
    """Raise FieldError unless the text is empty or a reference; the message omits the text."""
    if text:
        try:
            parse_secret_reference(text)
        except InputError as error:
            raise FieldError(field, str(error)) from None
