"""Read a secret by its reference at the moment it is needed; it is never stored."""

import base64
import hashlib
import json
import os
import re
from typing import Any

from detloom.components.notifier.delivery import NotSentError
from detloom.schemas.reading.redact import SecretReference, parse_secret_reference
from detloom.schemas.run_file.notifications import Notifications

_MANAGER = "https://secretmanager.googleapis.com"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_REASONS = {
    401: "Google does not accept the credentials",
    403: "the account has no permission; it needs the role secretmanager.secretAccessor",
    404: "no such version",
}


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
    """Return the environment variable that has the value of a Kubernetes secret in a container; unique per key."""
    place = f"{reference.name}/{reference.key}"
    readable = re.sub(r"[^A-Z0-9]+", "_", place.upper()).strip("_")[:40]
    return f"DETLOOM_SECRET_{readable}_{hashlib.sha256(place.encode()).hexdigest()[:8]}"


def read_secret(text: str, *, timeout_seconds: float) -> str:
    """Return the secret that a reference names, without a trailing line break; "" for "".

    Raises:
        NotSentError: it cannot be read. The reason may contain the name of the secret, never its value.
    """
    if not text:
        return ""
    reference = parse_secret_reference(text)
    match reference.kind:
        case "env":
            secret = _read_variable(reference.name)
        case "kubernetes":
            variable = variable_name(reference)
            secret = _read_variable(variable, f" for the Kubernetes secret {reference.name}/{reference.key}")
        case "secret_manager":
            secret = _read_from_manager(reference.name, timeout_seconds)
    secret = secret.rstrip("\r\n")
    if not secret:
        raise NotSentError(f"the secret {reference.name} is empty")
    return secret


def _read_variable(name: str, which: str = "") -> str:
    if name not in os.environ:
        raise NotSentError(f"the environment variable {name}{which} is not set")
    return os.environ[name]


def _read_from_manager(name: str, timeout_seconds: float) -> str:
    """Call projects.secrets.versions.access of Secret Manager's REST API."""
    from google.auth import exceptions  # late: only this kind of secret needs Google's libraries

    problem = f"the secret {name} cannot be read"
    try:
        answer = _make_session().get(f"{_MANAGER}/v1/{name}:access", timeout=timeout_seconds, allow_redirects=False)
        if (status := answer.status_code) != 200:
            reason = _REASONS.get(status, f"Secret Manager responded with {status}")
            raise NotSentError(f"{problem}: {reason}", is_temporary=status >= 500)
        return base64.b64decode(json.loads(answer.content)["payload"]["data"], validate=True).decode()
    except exceptions.DefaultCredentialsError:
        raise NotSentError(f"{problem}: there are no Google credentials") from None
    except (exceptions.GoogleAuthError, OSError) as error:  # errors of `requests` are OSErrors
        reason = f"Secret Manager cannot be reached ({type(error).__name__})"
        raise NotSentError(f"{problem}: {reason}", is_temporary=True) from None
    except (ValueError, KeyError, TypeError):
        raise NotSentError(f"{problem}: the response contains no UTF-8 secret") from None


def _make_session() -> Any:
    import google.auth
    from google.auth.transport.requests import AuthorizedSession

    credentials, _ = google.auth.default(scopes=[_SCOPE])
    return AuthorizedSession(credentials)
