"""The HTTP server of `detloom serve`: TensorFlow Serving's REST API, a web page, and limits on requests.

One request per connection, one call of the model at a time. Requests are not trusted: their length, their duration and
the number of connections are limited, requests from pages of other sites are refused, and no files are served.
"""

import contextlib
import io
import ipaddress
import json
import logging
import re
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from detloom.pipelines.serving.page import Page
from detloom.pipelines.serving.predict_request import RequestError
from detloom.pipelines.serving.served_model import ServedModel, format_metadata, format_status
from detloom.schemas.reading.redact import escape

HEALTH_PATH = "/healthz"
_MAX_CONNECTIONS = 16  # a browser opens six
_RECEIVE_SECONDS = 30.0  # for the whole request, however slowly it arrives
_SEND_SECONDS = 30.0
_DISCARD_SECONDS = 2.0  # to keep reading after a refusal, so that a client that is still sending receives it
_CHUNK_BYTES = 1 << 16
_MODEL_PATH = re.compile(
    r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>[0-9]{1,18}))?(?P<what>/metadata|:[a-z]+)?"
)
_LOCAL_NAMES = {"localhost", "127.0.0.1", "::1"}
_BUSY = b'{"error": "too many connections; try again."}'
_LOGGER = logging.getLogger("detloom")


@dataclass(frozen=True)
class Response:
    """A response."""

    body: bytes
    content_type: str = "application/json"
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


class ModelServer(ThreadingHTTPServer):
    """Listens as soon as it is constructed; `serve_forever` handles requests."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = _MAX_CONNECTIONS  # with the default of 5, a refused client may wait a second for its refusal

    def __init__(self, host: str, port: int, model: ServedModel, page: Page, max_request_bytes: int) -> None:
        """Start to listen.

        Args:
            port: 0 chooses a free port.

        Raises:
            OSError: the address cannot be used.
        """
        self.model, self.page, self.max_request_bytes = model, page, max_request_bytes
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._slots = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        super().__init__((host, port), RequestHandler)
        bound = str(self.server_address[0])
        is_local = ipaddress.ip_address(bound).is_loopback
        # Beyond the loopback interface the names of this machine are unknown.
        self.allowed_hosts = _LOCAL_NAMES | {host.lower(), bound} if is_local else None

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer.server_bind does a DNS lookup
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    @property
    def url(self) -> str:
        host = f"[{self.server_name}]" if ":" in self.server_name else self.server_name
        return f"http://{host}:{self.server_port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self._refuse(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def _refuse(self, request: socket.socket) -> None:
        head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: {len(_BUSY)}"
        with contextlib.suppress(OSError):
            request.setblocking(False)  # a slow client must not block the accept loop
            request.send(f"{head}\r\nConnection: close\r\n\r\n".encode("ascii") + _BUSY)
        self.shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnected; other errors are bugs and keep their traceback."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _TimedReader(io.RawIOBase):
    """Reads a socket with one deadline for the whole request."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection, self.deadline = connection, time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class RequestHandler(BaseHTTPRequestHandler):
    """Handles one connection."""

    server: ModelServer
    protocol_version = "HTTP/1.1"  # for `Expect: 100-continue`, which curl sends before a large body
    server_version, sys_version = "detloom", ""

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._reader = _TimedReader(self.connection, _RECEIVE_SECONDS)
        self.rfile = io.BufferedReader(self._reader)
        self._num_unread = 0

    def do_GET(self) -> None:
        self._respond(self._get)

    def do_HEAD(self) -> None:
        self._respond(self._get)  # `_send` omits the body

    def do_POST(self) -> None:
        self._respond(self._post)

    def handle_expect_100(self) -> bool:
        try:
            self._check_sender()
            self._read_length()
        except RequestError as error:
            self._send(_format_error(error))
            return False
        return super().handle_expect_100()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send errors of `http.server` itself as JSON."""
        status = HTTPStatus(code)
        self._send(_format_error(RequestError(message or status.phrase, status)))

    def log_message(self, format: str, *args: Any) -> None:
        _LOGGER.info("%s", escape(format % args))

    def _respond(self, make: Callable[[], Response]) -> None:
        try:
            answer = make()
        except RequestError as error:
            answer = _format_error(error)
        except Exception:
            message = "internal error; see the log of the server."
            self._send(_format_error(RequestError(message, HTTPStatus.INTERNAL_SERVER_ERROR)))
            raise
        self._send(answer)
        self._discard_rest()

    def _get(self) -> Response:
        self._check_sender()
        path = self.path.partition("?")[0]
        if path == "/":
            page = self.server.page
            return Response(page.html, "text/html; charset=utf-8", headers={"Content-Security-Policy": page.policy})
        if path == HEALTH_PATH:
            return _format_json({"status": "ok"})
        match self._find(path):
            case "/metadata":
                return _format_json(format_metadata(self.server.model))
            case None:
                return _format_json(format_status(self.server.model))
        raise RequestError(f"{path[:200]}: use POST.", HTTPStatus.METHOD_NOT_ALLOWED)

    def _post(self) -> Response:
        num_bytes = self._read_length()
        self._check_sender()
        path = self.path.partition("?")[0]
        what = self._find(path)
        if what != ":predict":
            raise RequestError(f"{path[:200]}: got {what or 'no verb'}, allowed with POST: :predict.")
        body = self._read_body(num_bytes)
        answer, seconds = self.server.model.predict(body)
        return _format_json(answer, {"Server-Timing": f"model;dur={1000 * seconds:.1f}"})

    def _find(self, path: str) -> str | None:
        """Return the requested resource of the model: "/metadata", a verb such as ":predict", or None (status)."""
        found, model = _MODEL_PATH.fullmatch(path), self.server.model
        if found is None:
            raise RequestError(f"{path[:200]}: no such path.", HTTPStatus.NOT_FOUND)
        if found["name"] != model.name or found["version"] not in (None, str(model.version)):
            allowed = f"/v1/models/{model.name}/versions/{model.version}"
            raise RequestError(f"{path[:200]}: no such model, allowed: {allowed}.", HTTPStatus.NOT_FOUND)
        return found["what"]

    def _check_sender(self) -> None:
        """Refuse requests from pages of other sites: DNS rebinding (Host) and cross-origin requests (Origin)."""
        host, origin = self.headers.get("Host"), self.headers.get("Origin")
        allowed = self.server.allowed_hosts
        if host is not None and allowed is not None and _host_name(f"//{host}") not in allowed:
            raise RequestError(f"Host: got {host[:200]}, allowed: {', '.join(sorted(allowed))}.", HTTPStatus.FORBIDDEN)
        if origin is not None and (host is None or not origin.lower().endswith(f"://{host.lower()}")):
            raise RequestError("Origin: requests from other sites are not allowed.", HTTPStatus.FORBIDDEN)

    def _read_length(self) -> int:
        """Return the length of the body, and store it as still to be read.

        Raises:
            RequestError: the length is missing, invalid or too large.
        """
        lengths = self.headers.get_all("Content-Length", [])
        if not lengths or "Transfer-Encoding" in self.headers:
            raise RequestError("needed: a Content-Length, without Transfer-Encoding.", HTTPStatus.LENGTH_REQUIRED)
        if len(lengths) > 1 or re.fullmatch("[0-9]{1,18}", lengths[0]) is None:
            raise RequestError(f"Content-Length: got {', '.join(lengths)[:200]}, allowed: one number.")
        self._num_unread, limit = int(lengths[0]), self.server.max_request_bytes
        if self._num_unread > limit:
            message = f"got a request of {self._num_unread} bytes, allowed: {limit} (--max-request-mb)."
            raise RequestError(message, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        return self._num_unread

    def _read_body(self, num_bytes: int) -> bytes:
        try:
            body = self.rfile.read(num_bytes)
        except TimeoutError:
            message = f"the request was not complete after {_RECEIVE_SECONDS:.0f} s."
            raise RequestError(message, HTTPStatus.REQUEST_TIMEOUT) from None
        if len(body) < num_bytes:
            raise RequestError(f"got {len(body)} of {num_bytes} bytes (Content-Length).")
        self._num_unread = 0
        return body

    def _discard_rest(self) -> None:
        """Read the rest of the body: a client that sends everything first would only see a closed connection."""
        self._reader.deadline = time.monotonic() + _DISCARD_SECONDS
        with contextlib.suppress(OSError):
            while self._num_unread > 0 and (chunk := self.rfile.read1(min(_CHUNK_BYTES, self._num_unread))):
                self._num_unread -= len(chunk)

    def _send(self, answer: Response) -> None:
        self.connection.settimeout(_SEND_SECONDS)
        self.send_response(answer.status)
        headers = {
            "Content-Type": answer.content_type,
            "Content-Length": str(len(answer.body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Connection": "close",  # also ends the handler's loop over the requests of this connection
            **answer.headers,
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)


def _host_name(address: str) -> str | None:
    """Return the host name of an address such as `//localhost:8501`, in lower case; None if it has none."""
    try:
        return urlsplit(address).hostname
    except ValueError:  # an invalid IPv6 address
        return None


def _format_json(content: Any, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json.dumps(content).encode("ascii"), headers=headers or {})


def _format_error(error: RequestError) -> Response:
    return Response(json.dumps({"error": error.message}).encode("ascii"), status=error.status)
