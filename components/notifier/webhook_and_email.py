"""Send a message by webhook or by mail.

An error never contains an address, a secret, or the text of a server or library.
"""

import contextlib
import http.client
import json
import smtplib
import ssl
import urllib.error
import urllib.parse
import urllib.request
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate
from typing import IO, Any

from absl import logging

import detloom
from detloom.components.notifier.read_secret import read_secret
from detloom.components.notifier.run_message import SENDER, NotSentError, RunMessage
from detloom.schemas.run_file.notifications import Email, Webhook

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_TOO_MANY, _SERVER_ERRORS = 429, 500
_NO_ADDRESS = "the secret is not a web address, allowed: https://, or http:// in a private network"
_TEMPORARY = range(400, 500)  # RFC 5321, 4.2.1: the same command may succeed later


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Treats a redirect as an error, because it would send message and header to an address that nobody configured."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        return None


def post_webhook(message: RunMessage, webhook: Webhook, timeout_seconds: float) -> None:
    """Send one POST request. Only the status of the response is read.

    Proxies are taken from the environment (HTTPS_PROXY, NO_PROXY).

    Args:
        timeout_seconds: timeout of each read and write.

    Raises:
        NotSentError: a secret cannot be read, or the server did not accept the message.
    """
    url = read_secret(webhook.url, timeout_seconds)
    authorization = read_secret(webhook.authorization, timeout_seconds)
    payload = message.to_payload()
    if webhook.only_text:
        payload = {"text": payload["text"]}
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"detloom/{detloom.__version__}",
        "Idempotency-Key": message.id,  # so that servers can drop duplicates
    }
    if authorization:
        headers["Authorization"] = authorization
    if not url.startswith(("https://", "http://")):
        raise NotSentError(_NO_ADDRESS)
    try:
        parts = urllib.parse.urlsplit(url)
        if "@" in parts.netloc:  # urllib would look up user and password as part of the host's name
            raise NotSentError(f"{_NO_ADDRESS}, without a user; use notifications.webhook.authorization")
        if authorization and parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            raise NotSentError("the address is http://, but the header Authorization is sent to https:// only")
        data = json.dumps(payload, allow_nan=False).encode()
        request = urllib.request.Request(url, data, headers, method="POST")  # noqa: S310  # only http and https pass
        urllib.request.build_opener(_NoRedirects()).open(request, timeout=timeout_seconds).close()
    except (OSError, http.client.HTTPException) as error:
        raise _not_sent(error) from None
    except ValueError:
        raise NotSentError(f"{_NO_ADDRESS}, or the header Authorization is not one line of ASCII") from None


def send_mail(message: RunMessage, email: Email, timeout_seconds: float) -> None:
    """Send one plain-text mail.

    Args:
        timeout_seconds: timeout of each read and write.

    Raises:
        NotSentError: a secret or the server cannot be read or verified, or the server refused all recipients.
    """
    user, password = read_secret(email.user, timeout_seconds), read_secret(email.password, timeout_seconds)
    context = ssl.create_default_context()
    try:
        server: smtplib.SMTP
        if email.encryption == "tls":
            server = smtplib.SMTP_SSL(email.host, email.port, timeout=timeout_seconds, context=context)
        else:
            server = smtplib.SMTP(email.host, email.port, timeout=timeout_seconds)
        with contextlib.closing(server):
            if email.encryption == "starttls":
                server.starttls(context=context)
            if user:
                server.login(user, password)
            refused = server.send_message(_build_mail(message, email), email.sender, list(email.recipients))
            with contextlib.suppress(smtplib.SMTPException, OSError):
                server.quit()  # the mail is already sent
    except (OSError, ValueError) as error:
        raise _not_sent(error) from None
    if refused:  # the other recipients got it, so it counts as sent
        logging.warning("notifications.email: %d of %d recipients were refused.", len(refused), len(email.recipients))


def _build_mail(message: RunMessage, email: Email) -> EmailMessage:
    """Build a mail. `EmailMessage` rejects line breaks in headers."""
    mail = EmailMessage(policy=SMTP)
    mail["From"] = email.sender
    mail["To"] = ", ".join(email.recipients)
    mail["Subject"] = f"[{SENDER}] {message.title}"
    mail["Date"] = formatdate()
    # The same event has the same id, so that mailboxes show it once.
    mail["Message-ID"] = f"<{message.id}@{email.sender.partition('@')[2]}>"
    mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: suppresses automatic replies
    mail.set_content(message.to_text() + "\n")
    return mail


def _not_sent(error: BaseException) -> NotSentError:
    """Describe the error of a request or of an SMTP session. `SMTPException` is an OSError."""
    match error:
        case urllib.error.HTTPError(code=code):
            error.close()
            is_temporary = code == _TOO_MANY or code >= _SERVER_ERRORS
            return NotSentError(f"the server responded with {code}", is_temporary=is_temporary)
        case urllib.error.URLError(reason=BaseException() as cause):
            return _not_sent(cause)
        case smtplib.SMTPRecipientsRefused(recipients=recipients):
            codes = sorted({code for code, _ in recipients.values()})
            reason = f"the server refused all recipients ({', '.join(map(str, codes))})"
            return NotSentError(reason, is_temporary=all(code in _TEMPORARY for code in codes))
        case smtplib.SMTPResponseException(smtp_code=code):
            return NotSentError(f"the server responded with {code}", is_temporary=code in _TEMPORARY)
        case http.client.InvalidURL() | urllib.error.URLError(reason=str()):
            return NotSentError(_NO_ADDRESS)
        case ssl.SSLCertVerificationError():
            return NotSentError("the server's certificate cannot be verified")
        case TimeoutError() | smtplib.SMTPServerDisconnected(__context__=TimeoutError()):
            return NotSentError("the server did not respond in time")
        case ValueError():  # a UnicodeEncodeError contains the password
            return NotSentError("the user or the password contains characters that are not ASCII")
    is_temporary = not isinstance(error, smtplib.SMTPNotSupportedError)  # no STARTTLS or no login
    return NotSentError(f"no connection ({type(error).__name__})", is_temporary=is_temporary)
