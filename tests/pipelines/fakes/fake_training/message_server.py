"""A local webhook server."""

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class MessageServer:
    """A server that stores the messages it receives.

    Attributes:
        messages: received since the last call of `take`.
    """

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.url = ""

    def take(self) -> list[dict[str, Any]]:
        taken, self.messages[:] = list(self.messages), []
        return taken


@contextmanager
def serve_messages() -> Iterator[MessageServer]:
    """Run a server at a free port of 127.0.0.1."""
    kept = MessageServer()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            kept.messages.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    kept.url = f"http://127.0.0.1:{server.server_address[1]}/hook"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield kept
    finally:
        server.shutdown()
        server.server_close()
