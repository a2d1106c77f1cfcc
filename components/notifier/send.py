"""Send a message to all configured receivers, each message once. No error here may fail a run."""

import contextlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from absl import logging

from detloom.components.notifier.run_message import NotSentError, RunMessage
from detloom.components.notifier.webhook_and_email import post_webhook, send_mail
from detloom.schemas.run_file.notifications import Notifications

SENT_FILE = "sent_messages.txt"  # lines of "message id, way"
_WAITS_SECONDS = (1.0, 4.0)  # before the second and the third attempt


class SentMessages:
    """The messages that runs on this machine have sent; the same event has the same id.

    Args:
        folder: folder of the list, shared by all runs.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / SENT_FILE
        self._entries: list[str] = []
        with contextlib.suppress(OSError):  # `add` reports a folder that cannot be used
            self._entries = self._path.read_text(encoding="utf-8", errors="replace").splitlines()

    def has(self, message_id: str, way: str) -> bool:
        return f"{message_id} {way}" in self._entries

    def add(self, message_id: str, way: str) -> None:
        """Add a message. If the list cannot be written, the message may be sent again."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{message_id} {way}\n")
        except OSError as error:
            logging.warning("Notifier: %s cannot be written (%s).", SENT_FILE, error.strerror)


def send(message: RunMessage, notifications: Notifications, sent_before: SentMessages | None = None) -> None:
    """Send the message if its event is enabled. A failure is logged as one warning without address and secrets.

    Args:
        sent_before: messages that were sent before; the new one is added.
    """
    if message.event not in notifications.events:
        return
    ways: dict[str, Callable[[float], None]] = {}
    if notifications.webhook is not None:
        ways["webhook"] = partial(post_webhook, message, notifications.webhook)
    if notifications.email is not None:
        ways["email"] = partial(send_mail, message, notifications.email)
    for name, way in ways.items():
        if sent_before is not None and sent_before.has(message.id, name):
            logging.info("notifications.%s: '%s' was already sent.", name, message.title)
            continue
        try:
            _try_again(partial(way, notifications.timeout_seconds))
        except Exception as error:  # also a bug here must not fail a finished run; its text may contain a secret
            reason = error if isinstance(error, NotSentError) else type(error).__name__
            logging.warning("notifications.%s: '%s' was not sent: %s.", name, message.title, reason)
            continue
        logging.info("notifications.%s: sent '%s'.", name, message.title)
        if sent_before is not None:
            sent_before.add(message.id, name)


def _try_again(function: Callable[[], None]) -> None:
    for wait_seconds in _WAITS_SECONDS:
        try:
            return function()
        except NotSentError as error:
            if not error.is_temporary:
                raise
        time.sleep(wait_seconds)
    return function()
