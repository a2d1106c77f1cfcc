"""Deliver a message by webhook or by mail, with errors that contain no secret, a time limit, and retries."""

import contextlib
import http.client
import json
import queue
import smtplib
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate
from typing import IO, Any, TypeVar

from absl import logging

import detloom
from detloom.components.notifier.messages import SENDER, Message
from detloom.schemas.run_file.notifications import Email

T = TypeVar("T")
WAITS_SECONDS = (1.0, 4.0)  # before the second and the third attempt
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_TOO_MANY, _SERVER_ERRORS = 429, 500
_UNTRUSTED = "the server's certificate cannot be verified"
_TOO_LATE = "the server did not respond in time"
_TEMPORARY = range(400, 500)  # RFC 5321, 4.2.1: the same command may succeed later


class NotSentError(Exception):
    """A message could not be sent.

    The text is part of a sentence. It contains no address and no secret, and never repeats the text of a server or
    library.

    Attributes:
        is_temporary: True if another attempt may succeed.
    """

    def __init__(self, reason: str, *, is_temporary: bool = False) -> None:
        super().__init__(reason)
        self.is_temporary = is_temporary


def call_within(seconds: float, function: Callable[[], T]) -> T:
    """Return what the function returns, or raise what it raises.

    A socket's timeout applies to a single read, so a server that sends a byte from time to time would never end, and a
    DNS lookup has no timeout. This limit covers the whole call.

    Raises:
        NotSentError: the call takes longer. It continues in a thread that ends with the process.
    """
    outcome: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            outcome.put((function(), None))
        except BaseException as error:  # raised again in the caller's thread
            outcome.put((None, error))

    threading.Thread(target=work, daemon=True).start()
    try:
        value, error = outcome.get(timeout=seconds)
    except queue.Empty:
        raise NotSentError(f"no response within {seconds:g} s") from None
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # set if there is no error


def try_again(function: Callable[[], None], waits_seconds: Sequence[float] = WAITS_SECONDS) -> None:
    """Call the function until it succeeds, at most once more than there are waits.

    Raises:
        NotSentError: the error of the last attempt.
    """
    for wait_seconds in waits_seconds:
        try:
            return function()
        except NotSentError as error:
            if not error.is_temporary:
                raise
        time.sleep(wait_seconds)
    try:
        return function()
    except NotSentError as error:
        raise NotSentError(f"{error}, {len(waits_seconds) + 1} attempts") from None


def trusted_authorities() -> ssl.SSLContext:
    """Return a context that verifies certificates against the system's authorities."""
    return ssl.create_default_context()


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Treats a redirect as an error, because it would send message and header to an address that nobody configured."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        return None


def post_json(
    url: str, payload: Mapping[str, Any], *, message_id: str, authorization: str = "", timeout_seconds: float
) -> None:
    """Send one POST request. Only the status of the response is read.

    Proxies are taken from the environment (HTTPS_PROXY, NO_PROXY).

    Args:
        message_id: sent as Idempotency-Key, so that servers can drop duplicates.
        timeout_seconds: timeout of each read and write.

    Raises:
        NotSentError: the server did not accept the message.
    """
    scheme = _check_address(url, authorization)
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"detloom/{detloom.__version__}",
        "Idempotency-Key": message_id,
        **({"Authorization": authorization} if authorization else {}),
    }
    data = json.dumps(payload, allow_nan=False).encode()
    handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
    if scheme == "https":
        handlers.append(urllib.request.HTTPSHandler(context=trusted_authorities()))
    try:
        request = urllib.request.Request(url, data, headers, method="POST")  # noqa: S310  # only http and https pass
        urllib.request.build_opener(*handlers).open(request, timeout=timeout_seconds).close()
    except urllib.error.HTTPError as error:
        error.close()
        raise _status_error(error.code) from None
    except urllib.error.URLError as error:
        raise _connection_error(error.reason) from None
    except (OSError, http.client.HTTPException) as error:
        raise _connection_error(error) from None
    except ValueError:
        raise NotSentError("the secret is not a web address") from None


def _check_address(url: str, authorization: str) -> str:
    """Return the scheme of the address; raise NotSentError, without the address, if it is not allowed."""
    if not (authorization.isascii() and authorization.isprintable()):
        raise NotSentError("the secret for the header Authorization is not a single line of ASCII")
    try:
        parts = urllib.parse.urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = None, None
    is_plain = url.isascii() and url.isprintable() and " " not in url
    if parts is None or not host or not is_plain or parts.scheme not in ("http", "https"):
        raise NotSentError("the secret is not a web address, allowed: https://, or http:// in a private network")
    if "@" in parts.netloc:
        raise NotSentError("the address contains a user; use notifications.webhook.authorization")
    if authorization and parts.scheme == "http" and host not in _LOOPBACK:
        raise NotSentError("the address is http://, but the header Authorization is sent to https:// only")
    return parts.scheme


def _status_error(status: int) -> NotSentError:
    if 300 <= status < 400:
        return NotSentError(f"the server responded with a redirect ({status}), which is not followed")
    return NotSentError(
        f"the server responded with {status}", is_temporary=status == _TOO_MANY or status >= _SERVER_ERRORS
    )


def _connection_error(reason: object) -> NotSentError:
    """Convert the error. The library's text is left out, because it may contain the address or the server's text."""
    if isinstance(reason, ssl.SSLCertVerificationError):
        return NotSentError(_UNTRUSTED)
    if isinstance(reason, TimeoutError):
        return NotSentError("the server did not respond in time")
    return NotSentError(f"no connection ({type(reason).__name__})", is_temporary=True)


def build_mail(message: Message, email: Email) -> EmailMessage:
    """Build a plain-text mail. `EmailMessage` rejects line breaks in headers."""
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


def send_mail(mail: EmailMessage, email: Email, *, user: str, password: str, timeout_seconds: float) -> None:
    """Send the mail once.

    Args:
        user: empty for no login.
        timeout_seconds: timeout of each read and write.

    Raises:
        NotSentError: the server cannot be reached or verified, or refused all recipients.
    """
    try:
        server = _connect(email, timeout_seconds)
        try:
            if user:
                server.login(user, password)
            refused = server.send_message(mail, email.sender, list(email.recipients))
            with contextlib.suppress(smtplib.SMTPException, OSError):
                server.quit()  # the mail is already sent
        finally:
            server.close()
    except smtplib.SMTPException as error:
        raise _smtp_error(error) from None
    except ssl.SSLCertVerificationError:
        raise NotSentError("the server's certificate cannot be verified") from None
    except TimeoutError:
        raise NotSentError(_TOO_LATE) from None
    except OSError as error:
        raise NotSentError(f"no connection ({type(error).__name__})", is_temporary=True) from None
    except ValueError:  # a UnicodeEncodeError contains the password
        raise NotSentError("the user or the password contains characters that are not ASCII") from None
    if refused:  # the other recipients got it, so it counts as sent
        logging.warning(
            "notifications.email: the server refused %d of %d recipients.", len(refused), len(email.recipients)
        )


def _connect(email: Email, timeout_seconds: float) -> smtplib.SMTP:
    """Connect with the configured encryption; raise if the server does not offer the required STARTTLS."""
    if email.encryption == "tls":
        return smtplib.SMTP_SSL(email.host, email.port, timeout=timeout_seconds, context=trusted_authorities())
    server = smtplib.SMTP(email.host, email.port, timeout=timeout_seconds)
    if email.encryption == "starttls":
        try:
            server.starttls(context=trusted_authorities())
        except BaseException:
            server.close()
            raise
    return server


def _smtp_error(error: smtplib.SMTPException) -> NotSentError:
    """Convert the error. The server's text is left out, because it may contain the user or the address."""
    match error:
        case smtplib.SMTPAuthenticationError():
            return NotSentError(f"the server refused the login ({error.smtp_code})")
        case smtplib.SMTPRecipientsRefused():
            codes = sorted({code for code, _ in error.recipients.values()})
            reason = f"the server refused all recipients ({', '.join(map(str, codes))})"
            return NotSentError(reason, is_temporary=all(code in _TEMPORARY for code in codes))
        case smtplib.SMTPNotSupportedError():
            return NotSentError("the server does not support a required feature: STARTTLS, login, or UTF-8")
        case smtplib.SMTPResponseException():
            code = error.smtp_code
            return NotSentError(f"the server responded with {code}", is_temporary=code in _TEMPORARY)
        case smtplib.SMTPServerDisconnected() if isinstance(error.__context__, TimeoutError):
            return NotSentError(_TOO_LATE)
        case smtplib.SMTPServerDisconnected():
            return NotSentError("the server closed the connection", is_temporary=True)
        case _:
            return NotSentError(f"the server did not accept the mail ({type(error).__name__})")
