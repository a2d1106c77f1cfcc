"""Convert failed requests to Kubeflow Pipelines or Vertex AI to one sentence with the next step.

Only this module handles the exceptions of both clients: kfp_server_api with urllib3 below it, and google.api_core with
google.auth and gRPC.
"""

import concurrent.futures
import contextlib
import json
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import google.api_core.exceptions as google_errors
import google.auth.exceptions as sign_in_errors
import kfp_server_api
import urllib3.exceptions as http_errors

from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import HIDDEN, redact

Kind = Literal[
    "signed out", "forbidden", "quota", "not found", "exists", "refused", "unreachable", "tls", "timeout", "server"
]
# temporary: a repeated request may succeed
MAY_PASS: frozenset[Kind] = frozenset({"quota", "unreachable", "timeout", "server"})
MAYBE_DONE: frozenset[Kind] = frozenset({"unreachable", "timeout", "server"})  # the request may have taken effect
_MAX_MESSAGE = 300  # characters of the server's message
_MAX_READ = 4000  # characters of it that are read
_WORDS: dict[Kind, str] = {
    "signed out": "the credentials were rejected; they may have expired",
    "forbidden": "the credentials are valid, but lack the permission",
    "quota": "a quota or rate limit is exhausted",
    "not found": "it does not exist",
    "exists": "the name is already in use",
    "refused": "the request was refused",
    "unreachable": "no connection",
    "tls": "the server's certificate was rejected",
    "timeout": "no response in time",
    "server": "the server failed",
}
_BY_HTTP_STATUS: dict[int, Kind] = {
    400: "refused",
    401: "signed out",
    403: "forbidden",
    404: "not found",
    408: "timeout",
    409: "exists",
    412: "refused",
    422: "refused",
    429: "quota",
    504: "timeout",
}
# Messages of gRPC (src/core in grpc/grpc), which reports all of these as UNAVAILABLE.
_SIGN_IN_WORDS = ("Getting metadata from plugin failed", "invalid_grant", "Reauthentication")
_TLS_WORDS = ("CERTIFICATE_VERIFY_FAILED", "Ssl handshake failed", "SSL_ERROR", "Peer name")


class ApiError(InputError):
    """A failed request.

    Attributes:
        kind: the kind of failure.
    """

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, kw_only=True)
class Server:
    """The addressed server.

    Attributes:
        name: for messages, such as "Kubeflow Pipelines at https://kubeflow.example.org".
        next_steps: the next step for each kind of failure; a missing kind gets a general sentence.
        secrets: texts that are removed from messages.
    """

    name: str
    next_steps: Mapping[Kind, str]
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def error(self, kind: Kind, action: str, message: str = "") -> ApiError:
        """Build the error of an `action` such as "submit the run", with the server's message."""
        shown = shorten_message(message, self.secrets)
        detail = f" ('{shown}')" if shown else ""
        return ApiError(kind, f"{self.name}: could not {action}: {_WORDS[kind]}{detail}; {self._next_step(kind)}.")

    def _next_step(self, kind: Kind) -> str:
        general: dict[Kind, str] = {
            "quota": "wait and try again, or ask for more",
            "not found": "check the name and the settings in the run file",
            "exists": "choose another name",
            "refused": "correct the request and try again",
            "unreachable": "check the address in the run file, the network and proxies",
            "timeout": "try again",
            "server": "try again; if it fails again, ask the administrators",
        }
        return self.next_steps.get(kind) or general.get(kind, "correct the problem and try again")


@contextlib.contextmanager
def translate_errors(server: Server, action: str) -> Iterator[None]:
    """Convert the exceptions of a request to ApiError; `action` completes "could not"."""
    try:
        yield
    except concurrent.futures.TimeoutError:  # an unfinished operation; an OSError from Python 3.11 on
        raise server.error("timeout", action) from None
    except (kfp_server_api.ApiException, http_errors.HTTPError, google_errors.GoogleAPIError) as error:
        raise server.error(_kind_of(error), action, _message_of(error)) from None
    except sign_in_errors.TransportError as error:
        raise server.error("unreachable", action, str(error)) from None
    except sign_in_errors.GoogleAuthError as error:
        raise server.error("signed out", action, str(error)) from None
    except ssl.SSLError as error:
        raise server.error("tls", action, str(error)) from None
    except OSError as error:
        raise server.error("unreachable", action, error.strerror or str(error)) from None


def shorten_message(text: str, secrets: tuple[str, ...] = ()) -> str:
    """Return a server's message as one line without secrets; of a long one, keep the beginning and the end."""
    for secret in filter(None, secrets):
        text = text.replace(secret, HIDDEN)
    words = text[:_MAX_READ].split()
    bearer = {place + 1 for place, word in enumerate(words) if word.lower().strip("'\"") == "bearer"}
    line = " ".join(HIDDEN if place in bearer else redact(word) for place, word in enumerate(words))
    half = _MAX_MESSAGE // 2
    return line.rstrip(".") if len(line) <= _MAX_MESSAGE else f"{line[:half]} ... {line[-half:].rstrip('.')}"


def _kind_of(error: Exception) -> Kind:
    if isinstance(error, kfp_server_api.ApiException):
        status = int(error.status or 0)  # 0: see kfp_server_api/rest.py; also a response with an invalid timestamp
        return _by_http_status(status) if status else "tls" if "SSL" in str(error.reason) else "server"
    if isinstance(error, http_errors.MaxRetryError) and error.reason is not None:
        return _kind_of(error.reason)
    if isinstance(error, http_errors.SSLError):
        return "tls"
    if isinstance(error, http_errors.ReadTimeoutError):
        return "timeout"
    if isinstance(error, http_errors.HTTPError):
        return "unreachable"
    return _kind_of_google(error)


def _kind_of_google(error: Exception) -> Kind:
    message = str(error)
    if isinstance(error, google_errors.RetryError | google_errors.DeadlineExceeded):
        return "timeout"
    if isinstance(error, google_errors.Aborted):  # a concurrent change; its HTTP status is 409 as well
        return "server"
    if isinstance(error, google_errors.ServiceUnavailable):
        if any(words in message for words in _SIGN_IN_WORDS):
            return "signed out"
        return "tls" if any(words in message for words in _TLS_WORDS) else "unreachable"
    code = getattr(error, "code", None)
    return _by_http_status(int(code)) if code else "server"


def _by_http_status(status: int) -> Kind:
    if status in _BY_HTTP_STATUS:
        return _BY_HTTP_STATUS[status]
    if 300 <= status < 400:
        return "signed out"  # a redirect to a sign-in page
    return "refused" if 400 <= status < 500 else "server"


def _message_of(error: Exception) -> str:
    """Return the message in Kubeflow's JSON or google.rpc.Status, or the library's message."""
    if isinstance(error, kfp_server_api.ApiException):
        try:
            answer = json.loads(error.body or "")
        except (ValueError, TypeError):
            text = error.body or str(error.reason or "")
            return "" if "<" in text else text  # a proxy may send an HTML page, or plain text such as "Jwt is expired"
        found = answer.get("message") or answer.get("error") if isinstance(answer, dict) else ""
        return found if isinstance(found, str) else ""
    if isinstance(error, google_errors.GoogleAPICallError):
        return error.message or ""
    if isinstance(error, http_errors.MaxRetryError):
        return str(error.reason).rpartition(": ")[2]  # the text before it contains an object with its memory address
    return str(error).rpartition(": ")[2]
