"""Read a secret by its reference at the moment it is needed; it is never stored."""

import base64
import hashlib
import json
import os
import re

from detloom.components.notifier.run_message import NotSentError
from detloom.schemas.reading.redact import SecretReference, parse_secret_reference
from detloom.schemas.run_file.notifications import Notifications

_MANAGER = "https://secretmanager.googleapis.com"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def references_of(notifications: Notifications) -> tuple[str, ...]:
    """Return all references to secrets, in order, as written."""
    webhook, email = notifications.webhook, notifications.email
    of_webhook = (webhook.url, webhook.authorization) if webhook else ()
    of_email = (email.user, email.password) if email else ()
    return tuple(filter(None, (*of_webhook, *of_email)))


def secret_variables(notifications: Notifications) -> dict[str, SecretReference]:
    """Return the Kubernetes secrets of a compiled job by the environment variable to set from each; sorted by name."""
    references = map(parse_secret_reference, references_of(notifications))
    found = {variable_name(each): each for each in references if each.kind == "kubernetes"}
    return dict(sorted(found.items()))


def variable_name(reference: SecretReference) -> str:
    """Return the environment variable with the value; in a container, each key of a Kubernetes secret has its own."""
    if reference.kind != "kubernetes":
        return reference.name
    place = f"{reference.name}/{reference.key}"
    readable = re.sub(r"[^A-Z0-9]+", "_", place.upper()).strip("_")[:40]
    return f"DETLOOM_SECRET_{readable}_{hashlib.sha256(place.encode()).hexdigest()[:8]}"


def read_secret(text: str, timeout_seconds: float) -> str:
    """Return the secret that a reference names, without a trailing line break; "" for "".

    Raises:
        NotSentError: it cannot be read. The reason may contain the name of the secret, never its value.
    """
    if not text:
        return ""
    reference = parse_secret_reference(text)
    variable = variable_name(reference)
    if reference.kind == "secret_manager":
        secret = _read_from_manager(reference.name, timeout_seconds)
    elif variable in os.environ:
        secret = os.environ[variable]
    else:
        raise NotSentError(f"the environment variable {variable} is not set ({text})")
    secret = secret.rstrip("\r\n")
    if not secret:
        raise NotSentError(f"the secret {reference.name} is empty")
    return secret


def _read_from_manager(name: str, timeout_seconds: float) -> str:
    """Call projects.secrets.versions.access of Secret Manager's REST API."""
    import google.auth  # late: only this kind of secret needs Google's libraries
    from google.auth.transport.requests import AuthorizedSession

    problem = f"the secret {name} cannot be read"
    try:
        credentials, _ = google.auth.default(scopes=[_SCOPE])
        session = AuthorizedSession(credentials)
        answer = session.get(f"{_MANAGER}/v1/{name}:access", timeout=timeout_seconds, allow_redirects=False)
    except (google.auth.exceptions.GoogleAuthError, OSError) as error:  # errors of `requests` are OSErrors
        reason = f"Secret Manager cannot be reached ({type(error).__name__})"
        raise NotSentError(f"{problem}: {reason}", is_temporary=True) from None
    if (status := answer.status_code) != 200:
        hint = "; the account needs the role secretmanager.secretAccessor" if status == 403 else ""
        raise NotSentError(f"{problem}: Secret Manager responded with {status}{hint}", is_temporary=status >= 500)
    try:
        return base64.b64decode(json.loads(answer.content)["payload"]["data"], validate=True).decode()
    except (ValueError, KeyError, TypeError):
        raise NotSentError(f"{problem}: the response contains no UTF-8 secret") from None
