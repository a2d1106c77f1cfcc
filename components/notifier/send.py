"""Sending a message everywhere it has to go. Nothing that goes wrong here may fail a run."""

from collections.abc import Callable, Sequence

from absl import logging

from detloom.components.notifier.delivery import WAITS_SECONDS, NotSentError, call_within, try_again
from detloom.components.notifier.mail import build_mail, send_mail
from detloom.components.notifier.messages import Message
from detloom.components.notifier.read_secret import read_secret
from detloom.components.notifier.told import Told
from detloom.components.notifier.webhook import post_json
from detloom.schemas.notifications_config import Email, Notifications, Webhook

_STEPS = 3  # that a try may take its time for: reading secrets, connecting, the server's answer


def send(
    message: Message,
    notifications: Notifications,
    told: Told | None = None,
    waits_seconds: Sequence[float] = WAITS_SECONDS,
) -> tuple[str, ...]:
    """Send it, if its event is asked for; what cannot be sent is one warning without address and secrets.

    Args:
        told: what need not be sent again; what is sent is added.

    Returns:
        Where it was sent: "webhook", "email".
    """
    told = told or Told(None)
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
        if told.has(message.id, name):
            logging.info("notifications.%s: '%s' was sent before.", name, message.title)
        elif _is_sent(name, way, message, seconds, waits_seconds):
            told.add(message.id, name)
            sent.append(name)
    return tuple(sent)


def _is_sent(
    name: str, way: Callable[[], None], message: Message, seconds: float, waits_seconds: Sequence[float]
) -> bool:
    try:
        try_again(lambda: call_within(_STEPS * seconds, way), waits_seconds)
    except NotSentError as error:
        logging.warning("notifications.%s: '%s' was not sent: %s.", name, message.title, error)
    except Exception as error:  # a mistake of ours must not fail a run that is done; its text may hold a secret
        logging.warning("notifications.%s: '%s' was not sent: %s.", name, message.title, type(error).__name__)
    else:
        logging.info("notifications.%s: sent '%s'.", name, message.title)
        return True
    return False


def _post(message: Message, webhook: Webhook, seconds: float) -> None:
    payload = message.to_payload()
    post_json(
        read_secret(webhook.url, timeout_seconds=seconds),
        {"text": payload["text"]} if webhook.only_text else payload,
        message_id=message.id,
        authorization=read_secret(webhook.authorization, timeout_seconds=seconds),
        timeout_seconds=seconds,
    )


def _mail(message: Message, email: Email, seconds: float) -> None:
    send_mail(
        build_mail(message, email),
        email,
        user=read_secret(email.user, timeout_seconds=seconds),
        password=read_secret(email.password, timeout_seconds=seconds),
        timeout_seconds=seconds,
    )
