"""Who is told when a run fails, when a model is refused, and when one is pushed."""

import re
from dataclasses import dataclass
from typing import Literal

from detloom.schemas.checks import check
from detloom.schemas.secret_reference import check_secret_reference

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_MAX_TIMEOUT = 600.0
_MAX_ADDRESS = 254  # RFC 5321, 4.5.3.1
# One name and one domain: what else stands in a mail's header would be another header, or another recipient.
_ADDRESS = re.compile(r"[^\s@,;:<>()\[\]\"\\]+@[^\s@,;:<>()\[\]\"\\]+")

Event = Literal["failed", "refused", "pushed", "skipped"]


@dataclass(frozen=True, kw_only=True)
class Webhook:
    """An address that gets the message as JSON: `text` for people, as chats show it, the rest for programs."""

    url: str
    """Reference to the address, which is a secret where it carries a token: `env:NAME`, `kubernetes:SECRET/KEY` or
    `secret_manager:projects/.../versions/latest`."""
    authorization: str = ""
    """Reference to the value of the header Authorization; empty for none."""
    only_text: bool = False
    """Send `text` alone, for chats that refuse a message with fields they do not know, such as Google Chat."""

    def __post_init__(self) -> None:
        check(bool(self.url), "url", "nothing", "a reference such as env:DETLOOM_WEBHOOK")
        check_secret_reference("url", self.url)
        check_secret_reference("authorization", self.authorization)


@dataclass(frozen=True, kw_only=True)
class Email:
    """A mail through an SMTP server."""

    host: str
    """Name of the server."""
    port: int = 587
    """Its port."""
    encryption: Literal["starttls", "tls", "none"] = "starttls"
    """`tls` from the first byte (port 465), `starttls` after a greeting (port 587), `none` for a relay
    nearby."""
    sender: str
    """Address that the mail comes from."""
    recipients: tuple[str, ...]
    """Addresses that it goes to."""
    user: str = ""
    """Reference to the user's name; empty sends without a login."""
    password: str = ""
    """Reference to the password."""

    def __post_init__(self) -> None:
        check(bool(_HOST.fullmatch(self.host)), "host", repr(self.host), "the name of a server, without a port")
        check(0 < self.port < 65536, "port", self.port, "1 to 65535")
        check(bool(self.recipients), "recipients", "nothing", "at least one address")
        allowed = "a plain address such as team@example.org"
        check(_is_address(self.sender), "sender", repr(self.sender), allowed)
        for address in self.recipients:
            check(_is_address(address), "recipients", repr(address), allowed)
        check(bool(self.user) == bool(self.password), "user", "one of user and password", "both or none", "password")
        is_open = self.encryption == "none" and bool(self.password)
        check(
            not is_open, "encryption", "'none' with a password", "starttls or tls, where there is a login", "password"
        )
        check_secret_reference("user", self.user)
        check_secret_reference("password", self.password)


@dataclass(frozen=True, kw_only=True)
class Notifications:
    """Messages about runs, the same on one machine, on Kubeflow and on Vertex AI."""

    events: tuple[Event, ...] = ("failed", "refused", "pushed")
    """What is told: a run that failed, a model that was not blessed, one that was pushed, a skipped training."""
    webhook: Webhook | None = None
    """Send to an address."""
    email: Email | None = None
    """Send by mail."""
    timeout_seconds: float = 20.0
    """How long a server is waited for. A message that cannot be sent is logged and fails nothing."""

    def __post_init__(self) -> None:
        check(0 < self.timeout_seconds <= _MAX_TIMEOUT, "timeout_seconds", self.timeout_seconds, "above 0, at most 600")
        check(len(set(self.events)) == len(self.events), "events", list(self.events), "each once")
        has_address = self.webhook is not None or self.email is not None
        check(has_address, "webhook", "nothing, and no email", "a webhook, an email or both", "email")


def _is_address(text: str) -> bool:
    return text.isprintable() and len(text) <= _MAX_ADDRESS and bool(_ADDRESS.fullmatch(text))
