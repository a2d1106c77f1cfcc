"""Notifications about failed runs, refused models, pushed models and skipped training runs."""

import re
from dataclasses import dataclass
from typing import Literal

from detloom.schemas.errors import FieldError, check, check_not_empty, check_unique
from detloom.schemas.reading.redact import check_secret_reference

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_MAX_TIMEOUT = 600.0
_MAX_ADDRESS = 254  # RFC 5321, 4.5.3.1
# One name and one domain: any other character could add a header or a recipient to the mail.
_ADDRESS = re.compile(r"[^\s@,;:<>()\[\]\"\\]+@[^\s@,;:<>()\[\]\"\\]+")

Event = Literal["failed", "refused", "pushed", "skipped"]


@dataclass(frozen=True, kw_only=True)
class Webhook:
    """URL that receives the message as JSON: `text` for chat programs, the other fields for scripts."""

    url: str
    """Reference to the URL, which may contain a token and is therefore a secret: `env:NAME`, `kubernetes:SECRET/KEY` or
    `secret_manager:projects/.../versions/latest`."""
    authorization: str = ""
    """Reference to the value of the Authorization header; empty for none."""
    only_text: bool = False
    """Send only `text`, for chat programs that reject messages with unknown fields, such as Google Chat."""

    def __post_init__(self) -> None:
        check_not_empty(self, "url")
        check_secret_reference("url", self.url)
        check_secret_reference("authorization", self.authorization)


@dataclass(frozen=True, kw_only=True)
class Email:
    """E-mail through an SMTP server."""

    host: str
    """Host name of the server."""
    port: int = 587
    """Port of the server."""
    encryption: Literal["starttls", "tls", "none"] = "starttls"
    """`tls` from the first byte (port 465), `starttls` after a greeting (port 587), or `none` for a relay in the same
    network."""
    sender: str
    """Address of the sender."""
    recipients: tuple[str, ...]
    """Addresses of the recipients."""
    user: str = ""
    """Reference to the user name; empty sends without a login."""
    password: str = ""
    """Reference to the password."""

    def __post_init__(self) -> None:
        check(bool(_HOST.fullmatch(self.host)), "host", repr(self.host), "the name of a server, without a port")
        check(0 < self.port < 65536, "port", self.port, "1 to 65535")
        check_not_empty(self, "recipients")
        for field, addresses in (("sender", (self.sender,)), ("recipients", self.recipients)):
            for address in addresses:
                is_plain = address.isprintable() and len(address) <= _MAX_ADDRESS and _ADDRESS.fullmatch(address)
                check(bool(is_plain), field, repr(address), "a plain address such as team@example.org")
        check(bool(self.user) == bool(self.password), "user", "one of user and password", "both or none", "password")
        is_open = self.encryption == "none" and bool(self.password)
        check(not is_open, "encryption", "'none' with a password", "starttls or tls with a login", "password")
        check_secret_reference("user", self.user)
        check_secret_reference("password", self.password)


@dataclass(frozen=True, kw_only=True)
class Notifications:
    """Messages about runs, the same on one machine, on Kubeflow and on Vertex AI."""

    events: tuple[Event, ...] = ("failed", "refused", "pushed")
    """Events to report: a failed run, a model that was not blessed or was rolled back before, a pushed model, a skipped
    training run."""
    webhook: Webhook | None = None
    """Send messages to a URL."""
    email: Email | None = None
    """Send messages by e-mail."""
    timeout_seconds: float = 20.0
    """Largest waiting time in seconds for a server. A message that cannot be sent is logged and does not fail the
    run."""

    def __post_init__(self) -> None:
        check(0 < self.timeout_seconds <= _MAX_TIMEOUT, "timeout_seconds", self.timeout_seconds, "above 0, at most 600")
        check_unique("events", self.events)
        if self.webhook is None and self.email is None:
            raise FieldError("webhook", "is missing; set webhook, email or both.", "email")
