"""The HTTP server of `detloom serve`: TensorFlow Serving's REST API, a web page, and limits on requests.

Requests are not trusted: their length and duration are limited, requests from pages of other sites are refused, and no
files are served. One request per connection.
"""

import contextlib
import ipaddress
import json
import logging
import re
import socket
import socketserver
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from detloom.pipelines.serving import request_limits
from detloom.pipelines.serving.page import Page
from detloom.pipelines.serving.request_limits import RequestError, read_body
from detloom.pipelines.serving.served_model import ServedModel
from detloom.schemas.reading.redact import escape

_CHUNK_BYTES = 1 << 16
_LOGGER = logging.getLogger("detloom")


class ModelServer(socketserver.ThreadingTCPServer):
    """Listens as soon as it is constructed; `serve_forever` handles requests. `HTTPServer` would do a DNS lookup."""

    allow_reuse_address = True

    def __init__(self, host: str, port: int, model: ServedModel, page: Page, max_request_bytes: int) -> None:
        """Start to listen; port 0 chooses a free one.

        Raises:
            OSError: the address cannot be used.
        """
        self.model, self.page, self.max_request_bytes = model, page, max_request_bytes
        super().__init__((host, port), RequestHandler)
        self._answering: list[threading.Thread] = []
        bound = str(self.server_address[0])
        self.is_local = ipaddress.ip_address(bound).is_loopback
        self.own_names = {"localhost", bound, host.lower()}
        self.url = f"http://{bound}:{self.server_address[1]}"

    def process_request(self, request: Any, client_address: Any) -> None:
        thread = threading.Thread(target=self.process_request_thread, args=(request, client_address), daemon=True)
        self._answering = [*(each for each in self._answering if each.is_alive()), thread]
        thread.start()

    def wait_until_answered(self, timeout_seconds: float) -> None:
        """Wait until all requests that were accepted are answered."""
        end = time.monotonic() + timeout_seconds
        for thread in self._answering:
            if thread.ident is not None:  # a signal may come before its start
                thread.join(max(0.0, end - time.monotonic()))


class RequestHandler(BaseHTTPRequestHandler):
    """Answers one request. After `REQUEST_SECONDS` the connection is closed for reading."""

    server: ModelServer
    protocol_version = "HTTP/1.1"  # for `Expect: 100-continue`, which curl sends before a large body
    server_version, sys_version = "detloom", ""

    def handle(self) -> None:
        deadline = threading.Timer(request_limits.REQUEST_SECONDS, self._stop_reading)
        deadline.daemon = True
        deadline.start()
        with contextlib.suppress(OSError):  # the client has disconnected
            super().handle()
            self.connection.shutdown(socket.SHUT_WR)
            # A client that still sends would only see a closed connection.
            while deadline.is_alive() and self.rfile.read1(_CHUNK_BYTES):
                pass
        deadline.cancel()

    def do_GET(self) -> None:
        self._respond()

    def do_POST(self) -> None:
        self._respond()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send errors of `http.server` itself as JSON."""
        self._send({"error": message or HTTPStatus(code).phrase}, HTTPStatus(code))

    def log_message(self, format: str, *args: Any) -> None:
        _LOGGER.info("%s", escape(format % args))

    def _respond(self) -> None:
        try:
            self._check_sender()
            content = self._answer(self.path.partition("?")[0])
        except RequestError as error:
            self.send_error(error.status, error.message)
        except Exception:
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error; see the log of the server.")
            raise
        else:
            self._send(content)

    def _answer(self, path: str) -> Page | dict[str, Any]:
        model, is_post = self.server.model, self.command == "POST"
        base = rf"/v1/models/{re.escape(model.name)}(?:/versions/{model.version})?"
        match = re.fullmatch(f"/|{base}(/metadata|:predict)?", path)
        if match is None:
            allowed = f"/, /v1/models/{model.name} and, below it, /metadata and :predict"
            raise RequestError(f"{path[:200]}: no such path, allowed: {allowed}.", HTTPStatus.NOT_FOUND)
        if is_post != (match[1] == ":predict"):
            raise RequestError(f"{path[:200]}: use {'GET' if is_post else 'POST'}.", HTTPStatus.METHOD_NOT_ALLOWED)
        if is_post:
            return model.predict(read_body(self.headers, self.rfile, self.server.max_request_bytes))
        if path == "/":
            return self.server.page
        return model.metadata() if match[1] else model.status()

    def _check_sender(self) -> None:
        """Refuse requests from pages of other sites: DNS rebinding (Host) and cross-origin requests (Origin)."""
        host, origin = self.headers.get("Host", "localhost").lower(), self.headers.get("Origin")
        if self.server.is_local and host.partition(":")[0] not in self.server.own_names:
            raise RequestError(f"Host: {host[:200]} is not this machine.", HTTPStatus.FORBIDDEN)
        if origin is not None and not origin.lower().endswith(f"://{host}"):
            raise RequestError("Origin: requests from other sites are not allowed.", HTTPStatus.FORBIDDEN)

    def _stop_reading(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RD)

    def _send(self, content: Page | dict[str, Any], status: HTTPStatus = HTTPStatus.OK) -> None:
        if isinstance(content, Page):
            body, content_type = content.html, "text/html; charset=utf-8"
        else:
            body, content_type = json.dumps(content).encode("ascii"), "application/json"
        headers = {
            "Content-Type": content_type,
            "Content-Length": str(len(body)),
            "Content-Security-Policy": self.server.page.policy,
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Connection": "close",
        }
        self.connection.settimeout(request_limits.REQUEST_SECONDS)  # for a client that does not read
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
