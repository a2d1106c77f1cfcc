"""What went wrong with a request to Kubeflow Pipelines or Vertex AI, as one sentence with the next step.

The exceptions of both clients are understood here and nowhere else: those of kfp_server_api and urllib3 below it, and
those of google.api_core, google.auth and gRPC.
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
from detloom.schemas.redact import HIDDEN, redact

Kind = Literal[
    "signed out", "forbidden", "quota", "not found", "exists", "refused", "unreachable", "tls", "timeout", "server"
]
MAY_PASS: frozenset[Kind] = frozenset({"quota", "unreachable", "timeout", "server"})  # by itself, when asked again
MAYBE_DONE: frozenset[Kind] = frozenset({"unreachable", "timeout", "server"})  # whether it was done is not known
_MAX_MESSAGE = 300  # characters of the server's own words
_MAX_READ = 4000  # of which these are looked at
_WORDS: dict[Kind, str] = {
    "signed out": "the credentials were not accepted; they may have expired",
    "forbidden": "the credentials are good, but not allowed to do that",
    "quota": "a quota or rate limit is used up",
    "not found": "there is no such thing",
    "exists": "there is one of that name already",
    "refused": "the request was refused",
    "unreachable": "no connection",
    "tls": "the server's certificate was not accepted",
    "timeout": "no answer in time",
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
    """A request that failed.

    Attributes:
        kind: of the failure.
    """

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, kw_only=True)
class Server:
    """Who is asked.

    Attributes:
        name: for messages, such as "Kubeflow Pipelines at https://kubeflow.example.org".
        next_steps: what to do about a failure; where a kind is missing, a general sentence is given.
        secrets: texts that no message may hold.
    """

    name: str
    next_steps: Mapping[Kind, str]
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def error(self, kind: Kind, what: str, message: str = "") -> ApiError:
        """The error of an attempt to `what`, such as "submit the run", with the server's own words."""
        shown = shorten_message(message, self.secrets)
        said = f" ('{shown}')" if shown else ""
        return ApiError(kind, f"{self.name}: could not {what}: {_WORDS[kind]}{said}; {self._next_step(kind)}.")

    def _next_step(self, kind: Kind) -> str:
        general: dict[Kind, str] = {
            "quota": "wait and try again, or ask for more",
            "not found": "look at the name and at the settings in the run file",
            "exists": "choose another name",
            "refused": "put that right and try again",
            "unreachable": "look at the address in the run file, at the network and at proxies",
            "timeout": "try again",
            "server": "try again; if it stays, ask those who run it",
        }
        return self.next_steps.get(kind) or general.get(kind, "put that right and try again")


@contextlib.contextmanager
def failures_said(server: Server, what: str) -> Iterator[None]:
    """Turn the exceptions of a request that was to `what` into an ApiError."""
    try:
        yield
    except concurrent.futures.TimeoutError:  # of an operation that goes on; from Python 3.11 on it is an OSError, too
        raise server.error("timeout", what) from None
    except (kfp_server_api.ApiException, http_errors.HTTPError, google_errors.GoogleAPIError) as error:
        raise server.error(_kind_of(error), what, _message_of(error)) from None
    except sign_in_errors.TransportError as error:
        raise server.error("unreachable", what, str(error)) from None
    except sign_in_errors.GoogleAuthError as error:
        raise server.error("signed out", what, str(error)) from None
    except ssl.SSLError as error:
        raise server.error("tls", what, str(error)) from None
    except OSError as error:
        raise server.error("unreachable", what, error.strerror or str(error)) from None


def shorten_message(text: str, secrets: tuple[str, ...] = ()) -> str:
    """A message of a server on one line, without secrets; of a long one the beginning and the end, where causes are."""
    for secret in filter(None, secrets):
        text = text.replace(secret, HIDDEN)
    words = text[:_MAX_READ].split()
    bearer = {place + 1 for place, word in enumerate(words) if word.lower().strip("'\"") == "bearer"}
    line = " ".join(HIDDEN if place in bearer else redact(word) for place, word in enumerate(words))
    half = _MAX_MESSAGE // 2
    return line.rstrip(".") if len(line) <= _MAX_MESSAGE else f"{line[:half]} ... {line[-half:].rstrip('.')}"


def _kind_of(error: Exception) -> Kind:
    if isinstance(error, kfp_server_api.ApiException):
        status = int(error.status or 0)  # 0: kfp_server_api/rest.py, or an answer with a time that is none
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
    if isinstance(error, google_errors.Aborted):  # by another change at the same time; its HTTP status is 409, too
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
        return "signed out"  # to a page where people sign in
    return "refused" if 400 <= status < 500 else "server"


def _message_of(error: Exception) -> str:
    """The server's words: of Kubeflow's JSON, of google.rpc.Status, or what the library says."""
    if isinstance(error, kfp_server_api.ApiException):
        try:
            answer = json.loads(error.body or "")
        except (ValueError, TypeError):
            text = error.body or str(error.reason or "")
            return "" if "<" in text else text  # a proxy may send a page, or words such as "Jwt is expired"
        found = answer.get("message") or answer.get("error") if isinstance(answer, dict) else ""
        return found if isinstance(found, str) else ""
    if isinstance(error, google_errors.GoogleAPICallError):
        return error.message or ""
    if isinstance(error, http_errors.MaxRetryError):
        return str(error.reason).rpartition(": ")[2]  # in front of it stands an object with its memory address
    return str(error).rpartition(": ")[2]
