"""Reading a secret from where its reference says, at the moment it is needed; it is kept nowhere."""

import base64
import binascii
import hashlib
import json
import os
import re
from typing import Any, Protocol

from detloom.components.notifier.delivery import NotSentError
from detloom.schemas.notifications_config import Notifications
from detloom.schemas.secret_reference import SecretReference, parse_secret_reference

MANAGER_ENDPOINT = "https://secretmanager.googleapis.com"  # v1 of its REST interface
MAX_SECRET_BYTES = 64 << 10  # what Google's Secret Manager takes
_MAX_ANSWER_BYTES = 4 * MAX_SECRET_BYTES  # base64, JSON and names around it
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_REASONS = {
    401: "Google does not accept the credentials",
    403: "the account may not read it; it needs the role secretmanager.secretAccessor",
    404: "there is no such version",
}


class Session(Protocol):
    """What is used of `google.auth.transport.requests.AuthorizedSession`."""

    def get(self, url: str, *, timeout: float, allow_redirects: bool, stream: bool) -> Any: ...


def references_of(notifications: Notifications) -> tuple[str, ...]:
    """All references to secrets, in order, as they were written."""
    webhook, email = notifications.webhook, notifications.email
    found = (
        *((webhook.url, webhook.authorization) if webhook else ()),
        *((email.user, email.password) if email else ()),
    )
    return tuple(filter(None, found))


def secret_variables(notifications: Notifications) -> dict[str, SecretReference]:
    """Which environment variables a compiled job has to fill from which Kubernetes secrets; sorted by name."""
    references = map(parse_secret_reference, references_of(notifications))
    found = {variable_name(each): each for each in references if each.kind == "kubernetes"}
    return dict(sorted(found.items()))


def variable_name(reference: SecretReference) -> str:
    """The environment variable that holds a Kubernetes secret's key in a container; no two keys share one."""
    place = f"{reference.name}/{reference.key}"
    readable = re.sub(r"[^A-Z0-9]+", "_", place.upper()).strip("_")[:40]
    return f"DETLOOM_SECRET_{readable}_{hashlib.sha256(place.encode()).hexdigest()[:8]}"


def read_secret(
    text: str, *, timeout_seconds: float, session: Session | None = None, endpoint: str = MANAGER_ENDPOINT
) -> str:
    """The secret that a reference stands for, without the line end that files and editors leave; "" for "".

    Args:
        session: for Secret Manager; made from the machine's own credentials where there is none.

    Raises:
        NotSentError: it cannot be read; the reference's name may be in the reason, the secret never is.
    """
    if not text:
        return ""
    reference = parse_secret_reference(text)
    match reference.kind:
        case "env":
            secret = _read_variable(reference.name)
        case "kubernetes":
            variable = variable_name(reference)
            secret = _read_variable(variable, f", which holds the Kubernetes secret {reference.name}/{reference.key},")
        case "secret_manager":
            secret = _read_from_manager(reference.name, timeout_seconds, session, endpoint)
    secret = secret.rstrip("\r\n")
    if not secret:
        raise NotSentError(f"the secret {reference.name} is empty")
    return secret


def _read_variable(name: str, which: str = "") -> str:
    if name not in os.environ:
        raise NotSentError(f"the environment variable {name}{which} is not set")
    return os.environ[name]


def _read_from_manager(name: str, timeout_seconds: float, session: Session | None, endpoint: str) -> str:
    """projects.secrets.versions.access of Secret Manager's REST interface."""
    from google.auth import exceptions  # late: only this kind of secret needs Google's libraries

    try:
        answer = (session or _make_session()).get(
            f"{endpoint}/v1/{name}:access", timeout=timeout_seconds, allow_redirects=False, stream=True
        )
        with answer:
            if answer.status_code != 200:
                status = answer.status_code
                reason = _REASONS.get(status, f"Secret Manager answered {status}")
                raise NotSentError(f"the secret {name} cannot be read: {reason}", may_pass=status >= 500)
            body = b""
            for chunk in answer.iter_content(_MAX_ANSWER_BYTES):
                body += chunk
                if len(body) > _MAX_ANSWER_BYTES:
                    break
    except exceptions.DefaultCredentialsError:
        raise NotSentError(f"the secret {name} cannot be read: there are no Google credentials") from None
    except (exceptions.GoogleAuthError, OSError) as error:  # errors of `requests` are OSErrors
        what = f"Secret Manager cannot be reached ({type(error).__name__})"
        raise NotSentError(f"the secret {name} cannot be read: {what}", may_pass=True) from None
    return _decode_answer(name, body)


def _make_session() -> Session:
    import google.auth
    from google.auth.transport.requests import AuthorizedSession

    credentials, _ = google.auth.default(scopes=[_SCOPE])
    session: Session = AuthorizedSession(credentials)
    return session


def _decode_answer(name: str, body: bytes) -> str:
    try:
        if len(body) > _MAX_ANSWER_BYTES:
            raise ValueError
        return base64.b64decode(json.loads(body)["payload"]["data"], validate=True).decode()
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error):
        raise NotSentError(f"the secret {name} cannot be read: Secret Manager's answer is no secret in UTF-8") from None
