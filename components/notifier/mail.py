"""A message by mail, through an SMTP server."""

import contextlib
import smtplib
import ssl
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate

from absl import logging

from detloom.components.notifier.delivery import NotSentError, trusted_authorities
from detloom.components.notifier.messages import SENDER, Message
from detloom.schemas.notifications_config import Email

_TOO_LATE = "the server did not answer in time"
_TEMPORARY = range(400, 500)  # RFC 5321, 4.2.1: the same may succeed later


def build_mail(message: Message, email: Email) -> EmailMessage:
    """Plain text; what stands in headers is on one line, which `EmailMessage` insists on besides."""
    mail = EmailMessage(policy=SMTP)
    mail["From"] = email.sender
    mail["To"] = ", ".join(email.recipients)
    mail["Subject"] = f"[{SENDER}] {message.title}"
    mail["Date"] = formatdate()
    # The same id for the same event: mailboxes show it once.
    mail["Message-ID"] = f"<{message.id}@{email.sender.partition('@')[2]}>"
    mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: no answer from those who are on holiday
    mail.set_content(message.to_text() + "\n")
    return mail


def send_mail(mail: EmailMessage, email: Email, *, user: str, password: str, timeout_seconds: float) -> None:
    """Send once.

    Args:
        user: empty for no login.
        timeout_seconds: of each read and write.

    Raises:
        NotSentError: the server cannot be reached, is not who it says, or took the mail for none of the recipients.
    """
    try:
        server = _connect(email, timeout_seconds)
        try:
            if user:
                server.login(user, password)
            refused = server.send_message(mail, email.sender, list(email.recipients))
            with contextlib.suppress(smtplib.SMTPException, OSError):
                server.quit()  # it is sent by now
        finally:
            server.close()
    except smtplib.SMTPException as error:
        raise _refusal(error) from None
    except ssl.SSLCertVerificationError:
        raise NotSentError("the server's certificate cannot be verified") from None
    except TimeoutError:
        raise NotSentError(_TOO_LATE) from None
    except OSError as error:
        raise NotSentError(f"no connection ({type(error).__name__})", may_pass=True) from None
    except ValueError:  # UnicodeEncodeError, with the password in its text
        raise NotSentError("the user or the password holds characters that are not ASCII") from None
    if refused:  # the others have it, so it counts as sent
        logging.warning(
            "notifications.email: the server refused %d of %d recipients.", len(refused), len(email.recipients)
        )


def _connect(email: Email, timeout_seconds: float) -> smtplib.SMTP:
    """A server that is encrypted as asked; without STARTTLS where that is asked, an error."""
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


def _refusal(error: smtplib.SMTPException) -> NotSentError:
    """The server's own words are left out: some repeat the user or the address."""
    match error:
        case smtplib.SMTPAuthenticationError():
            return NotSentError(f"the server refused the login ({error.smtp_code})")
        case smtplib.SMTPRecipientsRefused():
            codes = sorted({code for code, _ in error.recipients.values()})
            reason = f"the server refused all recipients ({', '.join(map(str, codes))})"
            return NotSentError(reason, may_pass=all(code in _TEMPORARY for code in codes))
        case smtplib.SMTPNotSupportedError():
            return NotSentError("the server does not offer what the settings ask for: STARTTLS, a login, or UTF-8")
        case smtplib.SMTPResponseException():
            code = error.smtp_code
            return NotSentError(f"the server answered {code}", may_pass=code in _TEMPORARY)
        case smtplib.SMTPServerDisconnected() if isinstance(error.__context__, TimeoutError):
            return NotSentError(_TOO_LATE)
        case smtplib.SMTPServerDisconnected():
            return NotSentError("the server ended the connection", may_pass=True)
        case _:
            return NotSentError(f"the server did not take it ({type(error).__name__})")
