"""The text of an error for a message that leaves the house."""

import os
from collections.abc import Iterable

from detloom.components.notifier.read_secret import variable_name
from detloom.schemas.errors import InputError
from detloom.schemas.redact import HIDDEN, is_secret
from detloom.schemas.secret_reference import parse_secret_reference

_MIN_HIDDEN = 6  # characters; a shorter value is found in words by chance
_MAX_READ = 4000


def describe_error(error: BaseException, references: Iterable[str] = ()) -> str:
    """A mistake of the user's is its sentence; of any other error, its type and first line.

    What the environment holds under the name of a secret, or of one of the references, is hidden: a library may have
    put it into its text.
    """
    text = str(error)[:_MAX_READ]
    if not isinstance(error, InputError):
        first = text.strip().partition("\n")[0]
        text = f"{type(error).__name__}: {first}" if first else type(error).__name__
    for secret in sorted(_known_secrets(references), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def _known_secrets(references: Iterable[str]) -> set[str]:
    named = set()
    for each in map(parse_secret_reference, references):
        named |= {variable_name(each)} if each.kind == "kubernetes" else {each.name}
    values = {value.strip() for name, value in os.environ.items() if name in named or is_secret(name)}
    return {value for value in values if len(value) >= _MIN_HIDDEN}
