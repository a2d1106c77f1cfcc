"""A local webhook server."""

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class MessageServer:
    """A server that stores the messages it receives, with the path of each request.

    Attributes:
        messages: received since the last call of `take`.
    """

    def __init__(self, url: str) -> None:
        self.messages: list[dict[str, Any]] = []
        self.url = url

    def take(self) -> list[dict[str, Any]]:
        taken, self.messages[:] = list(self.messages), []
        return taken


@contextmanager
def serve_messages(path: str = "hook") -> Iterator[MessageServer]:
    """Run a server at a free port of 127.0.0.1."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.messages.append({**json.loads(body), "path": self.path})
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        received = MessageServer(f"http://127.0.0.1:{server.server_port}/{path}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield received
        finally:
            server.shutdown()
