"""An HTTP server with the objects of one bucket and with faults; a subclass of its handler speaks a storage's API."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

Fault = Literal["stop", "refused", "unavailable", "answer_lost", "stalled", "cut"]
BUCKET = "bucket"


@dataclass(frozen=True)
class StoredObject:
    """One generation of an object."""

    content: bytes
    generation: int
    properties: dict[str, Any]


@dataclass
class Bucket:
    """The objects of one bucket and the requests so far.

    Attributes:
        requests: method and path of each request, with the object's name decoded.
        faults: by the number of the request, from 1. "stop" refuses this request and all later ones, as if the client
            had been killed before it. "refused" and "unavailable" are one response 403 or 503. "answer_lost" executes
            the request and closes the connection. "stalled" executes it only when `release_stalled` is called, and then
            closes the connection. "cut" sends half of the content.
        before_request: called before each request is executed; an ApiError is the response.
        after_request: called after each request that was executed.
        damage: objects whose name ends with this lose half of their bytes when uploaded.
        page_size: most names in one response to a listing.
        latency_seconds: added to each request; requests of several connections wait at the same time.
        ignored_condition: a header that has no effect on writes.
    """

    objects: dict[str, StoredObject] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    faults: dict[int, Fault] = field(default_factory=dict)
    before_request: Callable[[], None] = lambda: None
    after_request: Callable[[], None] = lambda: None
    damage: str = ""
    page_size: int = 1000
    latency_seconds: float = 0.0
    ignored_condition: str = ""
    is_stopped: bool = False
    uploads: dict[str, dict[str, Any]] = field(default_factory=dict)
    generation: int = 1000
    stalled: threading.Event = field(default_factory=threading.Event)
    stalled_done: threading.Event = field(default_factory=threading.Event)
    mutex: threading.RLock = field(default_factory=threading.RLock)

    def contents(self) -> dict[str, bytes]:
        with self.mutex:
            return {name: each.content for name, each in sorted(self.objects.items())}

    def release_stalled(self) -> None:
        """Execute the stalled request, whose client has given up."""
        self.stalled.set()
        assert self.stalled_done.wait(10.0)

    def put(self, name: str, content: bytes, properties: dict[str, Any]) -> StoredObject:
        self.generation += 1
        kept = {key: properties[key] for key in ("metadata", "contentType", "cacheControl") if key in properties}
        self.objects[name] = StoredObject(content, self.generation, kept)
        return self.objects[name]

    def damaged(self, name: str, content: bytes) -> bytes:
        """Return what is stored of an upload."""
        return content[: len(content) // 2] if self.damage and name.endswith(self.damage) else content

    def list_page(
        self, prefix: str, delimiter: str, *, first: str = "", after: str = "", size: int = 1000
    ) -> tuple[dict[str, bool], str]:
        """Return the next names from `first` or `after`, each with whether it is a prefix, and the name to go on after.

        The second value is empty if there are no more names.
        """
        size = min(size, self.page_size)
        found: dict[str, bool] = {}
        for name in sorted(self.objects):
            if name.startswith(prefix) and name >= first:
                head, mark, _ = name.removeprefix(prefix).partition(delimiter) if delimiter else (name, "", "")
                found[prefix + head + mark if mark else name] = bool(mark)
        names = [name for name in found if name > after]
        return {name: found[name] for name in names[:size]}, names[size - 1] if len(names) > size else ""


class ApiError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


Response = tuple[int, dict[str, str], bytes]


class Handler(BaseHTTPRequestHandler):
    """Answers the requests to one bucket."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "ObjectServer"
    uncounted_path = ""

    def log_message(self, *args: object) -> None:
        """Log nothing."""

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        bucket = self.bucket = self.server.bucket
        time.sleep(bucket.latency_seconds)
        with bucket.mutex:
            fault = None
            if urlsplit(self.path).path != self.uncounted_path:
                bucket.requests.append(f"{self.command} {unquote(self.path)}")
                fault = bucket.faults.get(len(bucket.requests))
        if fault == "stalled":
            bucket.stalled.wait(10.0)
        with bucket.mutex:
            bucket.is_stopped = bucket.is_stopped or fault == "stop"
            if bucket.is_stopped or fault == "refused":
                response = self.format_error(403, "refused")
            elif fault == "unavailable":
                response = self.format_error(503, "try again")
            else:
                try:
                    bucket.before_request()
                    response = self.respond(body)
                except ApiError as error:
                    response = self.format_error(error.status, str(error))
                bucket.after_request()
        if fault in ("answer_lost", "stalled"):
            bucket.stalled_done.set()
            self.close_connection = True
            return
        status, headers, content = response
        self.send_response(status)
        for key, value in {"Content-Length": len(content), **headers}.items():
            self.send_header(key, str(value))
        self.end_headers()
        content = b"" if self.command == "HEAD" else content
        self.wfile.write(content[: len(content) // 2] if fault == "cut" else content)
        self.close_connection = fault == "cut"

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _handle

    def respond(self, body: bytes) -> Response:
        """Execute the request."""
        raise NotImplementedError

    def format_error(self, status: int, message: str) -> Response:
        raise NotImplementedError

    def format_content(self, content: bytes, headers: dict[str, str]) -> Response:
        """Return the content, or the range of it that the request wants."""
        if "Range" not in self.headers:
            return 200, headers, content
        first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        if int(first) >= len(content):
            raise ApiError(416, "Request range not satisfiable")
        stop = min(int(last or len(content)) + 1, len(content))
        span = f"bytes {first}-{stop - 1}/{len(content)}"
        return 206, {**headers, "Content-Range": span}, content[int(first) : stop]


class ObjectServer(ThreadingHTTPServer):
    """The server on a free port of this machine."""

    daemon_threads = True

    def __init__(self, handler: type[Handler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.bucket = Bucket()
        self.url = f"http://127.0.0.1:{self.server_port}"

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Serve requests in a thread."""
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield
        self.shutdown()
        thread.join()
        self.server_close()
