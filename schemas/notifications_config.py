"""Who is told when a run fails, when a model is refused, and when one is pushed."""

from dataclasses import dataclass
from typing import Literal

from detloom.schemas.checks import check, check_fields
from detloom.schemas.secret_reference import check_secret_reference

Event = Literal["failed", "refused", "pushed", "skipped"]


@dataclass(frozen=True, kw_only=True)
class Webhook:
    """An address that gets the message as JSON: `text` for people, as chats show it, the rest for programs."""

    url: str
    """Reference to the address, which is a secret where it carries a token: `env:NAME`, `kubernetes:SECRET/KEY` or
    `secret_manager:projects/.../versions/latest`."""
    authorization: str = ""
    """Reference to the value of the header Authorization; empty for none."""

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
        check(bool(self.host), "host", "nothing", "the name of a server")
        check(0 < self.port < 65536, "port", self.port, "1 to 65535")
        check(bool(self.recipients), "recipients", "nothing", "at least one address")
        for address in (self.sender, *self.recipients):
            is_address = "@" in address and not any(char.isspace() or char in ",;<>" for char in address)
            field = "sender" if address == self.sender else "recipients"
            check(is_address, field, repr(address), "a plain address such as team@example.org")
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
        check_fields(self, "above 0", "timeout_seconds")
        check(len(set(self.events)) == len(self.events), "events", list(self.events), "each once")
