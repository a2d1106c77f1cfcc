"""Send a message to all configured receivers, each message once. No error here may fail a run."""

from collections.abc import Callable, Sequence

from absl import logging

from detloom.components.notifier.delivery import WAITS_SECONDS, NotSentError, post_json, send_mail, try_again
from detloom.components.notifier.messages import RunMessage
from detloom.components.notifier.read_secret import read_secret
from detloom.components.storage.storage import open_storage
from detloom.schemas.run_file.notifications import Email, Notifications, Webhook

SENT_FILE = "sent_messages.txt"  # lines of "message id, way"
MAX_ENTRIES = 1000  # the newest entries are kept
_MAX_BYTES = 1 << 20


class SentMessages:
    """The sent messages by id; the same event has the same id.

    Args:
        folder: folder of the list, shared by all runs; None for an empty list that is not stored.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        try:
            data = open_storage(folder).read(SENT_FILE, _MAX_BYTES) if folder else None
        except OSError as error:
            logging.warning("Notifier: %s cannot be read (%s).", SENT_FILE, error.strerror)
            data = None
        self._entries = data.decode("utf-8", errors="replace").splitlines() if data else []

    def has(self, message_id: str, way: str) -> bool:
        return f"{message_id} {way}" in self._entries

    def add(self, message_id: str, way: str) -> None:
        """Add a message. If the list cannot be written, the message may be sent again."""
        self._entries = [*self._entries, f"{message_id} {way}"][-MAX_ENTRIES:]
        if self._folder:
            try:
                open_storage(self._folder).write(SENT_FILE, "".join(f"{entry}\n" for entry in self._entries).encode())
            except OSError as error:
                logging.warning("Notifier: %s cannot be written (%s).", SENT_FILE, error.strerror)


def send(
    message: RunMessage,
    notifications: Notifications,
    sent_before: SentMessages | None = None,
    waits_seconds: Sequence[float] = WAITS_SECONDS,
) -> tuple[str, ...]:
    """Send the message if its event is enabled. A failure is logged as one warning without address and secrets.

    Args:
        sent_before: messages that were sent before; the new one is added.

    Returns:
        The ways by which it was sent: "webhook", "email".
    """
    sent_before = sent_before or SentMessages(None)
    if message.event not in notifications.events:
        return ()
    ways: dict[str, Callable[[], None]] = {}
    seconds = notifications.timeout_seconds
    if (webhook := notifications.webhook) is not None:
        ways["webhook"] = lambda: _post(message, webhook, seconds)
    if (email := notifications.email) is not None:
        ways["email"] = lambda: _mail(message, email, seconds)
    sent = []
    for name, way in ways.items():
        if sent_before.has(message.id, name):
            logging.info("notifications.%s: '%s' was already sent.", name, message.title)
            continue
        try:
            try_again(way, waits_seconds)
        except Exception as error:  # also a bug here must not fail a finished run; its text may contain a secret
            reason = error if isinstance(error, NotSentError) else type(error).__name__
            logging.warning("notifications.%s: '%s' was not sent: %s.", name, message.title, reason)
        else:
            logging.info("notifications.%s: sent '%s'.", name, message.title)
            sent_before.add(message.id, name)
            sent.append(name)
    return tuple(sent)


def _post(message: RunMessage, webhook: Webhook, seconds: float) -> None:
    payload = message.to_payload()
    post_json(
        read_secret(webhook.url, timeout_seconds=seconds),
        {"text": payload["text"]} if webhook.only_text else payload,
        message_id=message.id,
        authorization=read_secret(webhook.authorization, timeout_seconds=seconds),
        timeout_seconds=seconds,
    )


def _mail(message: RunMessage, email: Email, seconds: float) -> None:
    user, password = (read_secret(text, timeout_seconds=seconds) for text in (email.user, email.password))
    send_mail(message, email, user=user, password=password, timeout_seconds=seconds)
