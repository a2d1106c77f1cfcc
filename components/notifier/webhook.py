"""A message as JSON to an address."""

import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import IO, Any

import detloom
from detloom.components.notifier.delivery import NotSentError, trusted_authorities

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_TOO_MANY, _SERVER_ERRORS = 429, 500
_UNTRUSTED = "the server's certificate cannot be verified"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would carry message and header to an address that nobody wrote down: it is answered as an error."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        return None


def post_json(
    url: str, payload: Mapping[str, Any], *, message_id: str, authorization: str = "", timeout_seconds: float
) -> None:
    """POST once. Of the answer, only the status is read.

    Proxies are those of the environment (HTTPS_PROXY, NO_PROXY).

    Args:
        message_id: goes with it as Idempotency-Key, for servers that leave out what they have.
        timeout_seconds: of each read and write.

    Raises:
        NotSentError: it was not taken.
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
        raise _refusal(error.code) from None
    except urllib.error.URLError as error:
        raise _no_connection(error.reason) from None
    except (OSError, http.client.HTTPException) as error:
        raise _no_connection(error) from None
    except ValueError:
        raise NotSentError("the secret holds no web address") from None


def _check_address(url: str, authorization: str) -> str:
    """The scheme of an address that may be asked; NotSentError, without the address, for another."""
    if not (authorization.isascii() and authorization.isprintable()):
        raise NotSentError("the secret for the header Authorization holds more than one line of ASCII")
    try:
        parts = urllib.parse.urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = None, None
    is_plain = url.isascii() and url.isprintable() and " " not in url
    if parts is None or not host or not is_plain or parts.scheme not in ("http", "https"):
        raise NotSentError("the secret holds no web address, allowed: https://, or http:// in a network of one's own")
    if "@" in parts.netloc:
        raise NotSentError("the address holds a user; use notifications.webhook.authorization")
    if authorization and parts.scheme == "http" and host not in _LOOPBACK:
        raise NotSentError("the address is http://, and the header Authorization goes to https:// only")
    return parts.scheme


def _refusal(status: int) -> NotSentError:
    if 300 <= status < 400:
        return NotSentError(f"the server answered with a redirect ({status}), which is not followed")
    return NotSentError(f"the server answered {status}", may_pass=status == _TOO_MANY or status >= _SERVER_ERRORS)


def _no_connection(reason: object) -> NotSentError:
    """The library's text is left out: it may repeat the address, or what the server said."""
    if isinstance(reason, ssl.SSLCertVerificationError):
        return NotSentError(_UNTRUSTED)
    if isinstance(reason, TimeoutError):
        return NotSentError("the server did not answer in time")
    return NotSentError(f"no connection ({type(reason).__name__})", may_pass=True)
