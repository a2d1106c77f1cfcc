"""Where a secret is kept. A run file, and all that is made of it, holds such references and never a secret itself."""

import re
from dataclasses import dataclass
from typing import Literal

from detloom.schemas.checks import check
from detloom.schemas.errors import InputError

SecretKind = Literal["env", "kubernetes", "secret_manager"]
ALLOWED_REFERENCES = "env:NAME, kubernetes:SECRET/KEY or secret_manager:projects/PROJECT/secrets/NAME/versions/VERSION"
_FORMS: dict[SecretKind, re.Pattern[str]] = {
    "env": re.compile(r"([A-Za-z_][A-Za-z0-9_]*)"),
    "kubernetes": re.compile(r"([a-z0-9][a-z0-9.-]{0,252})/([A-Za-z0-9._-]{1,253})"),
    "secret_manager": re.compile(r"(projects/[a-z0-9:.-]+/secrets/[A-Za-z0-9_-]{1,255}/versions/(?:latest|[0-9]+))"),
}


@dataclass(frozen=True, kw_only=True)
class SecretReference:
    """Where a secret is kept.

    Attributes:
        name: of the environment variable, of the Kubernetes secret, or of the version in Google's Secret Manager.
        key: of a Kubernetes secret.
    """

    kind: SecretKind
    name: str
    key: str = ""


def parse_secret_reference(text: str) -> SecretReference:
    """Read "kind:name".

    Raises:
        InputError: without the text, which may be the secret itself.
    """
    kind, _, rest = text.partition(":")
    for known, form in _FORMS.items():
        match = form.fullmatch(rest)
        if kind == known and match is not None:
            return SecretReference(kind=known, name=match[1], key=match[2] if form.groups > 1 else "")
    raise InputError(f"got no reference to a secret, allowed: {ALLOWED_REFERENCES}.")


def check_secret_reference(field: str, text: str) -> None:
    """Raise FieldError unless it is empty or a reference; the message does not repeat it."""
    if text:
        try:
            parse_secret_reference(text)
        except InputError:
            check(False, field, "no reference to a secret", ALLOWED_REFERENCES)
