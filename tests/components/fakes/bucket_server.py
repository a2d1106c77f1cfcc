"""An HTTP server with the objects of one bucket and with faults.

It speaks the part of the S3 API and of Cloud Storage's XML API that obstore uses, which differ in the names of headers.
Written from their documentation (docs.aws.amazon.com/AmazonS3, cloud.google.com/storage/docs/xml-api): listings with
pages, GET and HEAD with ranges and `If-Match`, PUT with conditions, copies, uploads in parts and DELETE.
"""

import contextlib
import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

Fault = Literal["stop", "refused", "unavailable", "answer_lost", "stalled", "cut"]
Response = tuple[int, dict[str, str], bytes]
BUCKET = "bucket"
_TIME = "2026-01-02T03:04:05.000Z"
_HTTP_TIME = "Fri, 02 Jan 2026 03:04:05 GMT"


@dataclass(frozen=True)
class StoredObject:
    """One generation of an object."""

    content: bytes
    generation: int

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.content, usedforsecurity=False).hexdigest()}"'


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
        ignored_condition: a header that has no effect on writes.
    """

    objects: dict[str, StoredObject] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    faults: dict[int, Fault] = field(default_factory=dict)
    before_request: Callable[[], None] = lambda: None
    after_request: Callable[[], None] = lambda: None
    damage: str = ""
    page_size: int = 1000
    ignored_condition: str = ""
    is_stopped: bool = False
    parts: dict[int, bytes] = field(default_factory=dict)
    generation: int = 1000
    stalled: threading.Event = field(default_factory=threading.Event)
    stalled_done: threading.Event = field(default_factory=threading.Event)
    mutex: threading.RLock = field(default_factory=threading.RLock)

    def contents(self) -> dict[str, bytes]:
        with self.mutex:
            return {name: stored.content for name, stored in sorted(self.objects.items())}

    def release_stalled(self) -> None:
        """Execute the stalled request, whose client has given up."""
        self.stalled.set()
        assert self.stalled_done.wait(10.0)

    def put(self, name: str, content: bytes) -> StoredObject:
        self.generation += 1
        self.objects[name] = StoredObject(content, self.generation)
        return self.objects[name]

    def list_page(self, prefix: str, delimiter: str, after: str) -> tuple[dict[str, bool], str]:
        """Return the next names, each with whether it is a prefix, and the name to go on after; "" at the end."""
        listed: dict[str, bool] = {}
        for name in sorted(self.objects):
            if name.startswith(prefix):
                head, mark, _ = name.removeprefix(prefix).partition(delimiter) if delimiter else (name, "", "")
                listed[prefix + head + mark if mark else name] = bool(mark)
        names = [name for name in listed if name > after]
        page = names[: self.page_size]
        return {name: listed[name] for name in page}, page[-1] if len(names) > len(page) else ""


class ApiError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Handler(BaseHTTPRequestHandler):
    """Answers the requests to one bucket."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "BucketServer"

    def log_message(self, *args: object) -> None:
        """Log nothing."""

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        bucket = self.bucket = self.server.bucket
        with bucket.mutex:
            bucket.requests.append(f"{self.command} {unquote(self.path)}")
            fault = bucket.faults.get(len(bucket.requests))
        if fault == "stalled":
            bucket.stalled.wait(10.0)
        with bucket.mutex:
            bucket.is_stopped = bucket.is_stopped or fault == "stop"
            if bucket.is_stopped or fault == "refused":
                response = _error(403, "refused")
            elif fault == "unavailable":
                response = _error(503, "try again")
            else:
                try:
                    bucket.before_request()
                    response = self._respond(body)
                except ApiError as error:
                    response = _error(error.status, str(error))
                bucket.after_request()
        if fault in ("answer_lost", "stalled"):
            bucket.stalled_done.set()
            self.close_connection = True
            return
        status, headers, content = response
        self.send_response(status)
        for key, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        content = b"" if self.command == "HEAD" else content
        self.wfile.write(content[: len(content) // 2] if fault == "cut" else content)
        self.close_connection = fault == "cut"

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _handle

    def _respond(self, body: bytes) -> Response:
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        bucket_name, _, name = unquote(url.path).lstrip("/").partition("/")
        if bucket_name != BUCKET:
            raise ApiError(404, "The specified bucket does not exist")
        if not name:
            return self._list(query)
        if "uploads" in query or "uploadId" in query:
            return self._upload_part(name, query, body)
        match self.command:
            case "DELETE":
                self._existing(name)
                del self.bucket.objects[name]
                return 204, {}, b""
            case "PUT":
                return self._put(name, body)
        return self._get(name)

    def _existing(self, name: str) -> StoredObject:
        if name not in self.bucket.objects:
            raise ApiError(404, "The specified key does not exist.")
        return self.bucket.objects[name]

    def _header(self, name: str) -> str | None:
        """Return a header that the two APIs name differently, without its prefix."""
        return self.headers.get(f"x-amz-{name}") or self.headers.get(f"x-goog-{name}")

    def _put(self, name: str, body: bytes) -> Response:
        if source := self._header("copy-source"):
            stored = self.bucket.put(name, self._existing(unquote(source).lstrip("/").partition("/")[2]).content)
            tags = f"<ETag>{escape(stored.etag)}</ETag><LastModified>{_TIME}</LastModified>"
            return 200, {}, f"<CopyObjectResult>{tags}</CopyObjectResult>".encode()
        self._check_conditions(self.bucket.objects.get(name))
        is_damaged = self.bucket.damage and name.endswith(self.bucket.damage)
        stored = self.bucket.put(name, body[: len(body) // 2] if is_damaged else body)
        return 200, self._headers_of(stored), b""

    def _check_conditions(self, stored: StoredObject | None) -> None:
        del self.headers[self.bucket.ignored_condition]
        generation = self._header("if-generation-match")
        is_other = generation is not None and int(generation) != (stored.generation if stored else 0)
        if self.headers.get("If-None-Match") == "*" and stored:
            is_other = True
        if self.headers.get("If-Match"):
            if stored is None:
                raise ApiError(404, "The specified key does not exist.")
            is_other = self.headers["If-Match"] != stored.etag
        if is_other:
            raise ApiError(412, "At least one of the pre-conditions you specified did not hold")

    def _headers_of(self, stored: StoredObject) -> dict[str, str]:
        generation = {"x-goog-generation": str(stored.generation)} if self.server.is_google else {}
        return {"ETag": stored.etag, "Last-Modified": _HTTP_TIME, **generation}

    def _get(self, name: str) -> Response:
        stored = self._existing(name)
        if self.headers.get("If-Match", stored.etag) != stored.etag:
            raise ApiError(412, "At least one of the pre-conditions you specified did not hold")
        content, headers = stored.content, self._headers_of(stored)
        if "Range" not in self.headers:
            return 200, headers, content
        first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        if int(first) >= len(content):
            raise ApiError(416, "Request range not satisfiable")
        stop = min(int(last or len(content)) + 1, len(content))
        headers["Content-Range"] = f"bytes {first}-{stop - 1}/{len(content)}"
        return 206, headers, content[int(first) : stop]

    def _upload_part(self, name: str, query: dict[str, str], body: bytes) -> Response:
        """Start an upload in parts, take a part, or complete the object; one upload at a time."""
        if "uploads" in query:
            self.bucket.parts = {}
            return 200, {}, b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
        if "partNumber" in query:
            self.bucket.parts[int(query["partNumber"])] = body
            return 200, {"ETag": f'"{query["partNumber"]}"'}, b""
        numbers = map(int, re.findall(rb"<PartNumber>(\d+)<", body))
        stored = self.bucket.put(name, b"".join(self.bucket.parts[number] for number in numbers))
        tag = f"<CompleteMultipartUploadResult><ETag>{escape(stored.etag)}</ETag></CompleteMultipartUploadResult>"
        return 200, self._headers_of(stored), tag.encode()

    def _list(self, query: dict[str, str]) -> Response:
        page, token = self.bucket.list_page(
            query.get("prefix", ""),
            query.get("delimiter", ""),
            query.get("continuation-token") or query.get("start-after", ""),
        )
        parts = []
        for name, is_prefix in page.items():
            if is_prefix:
                parts.append(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>")
                continue
            stored = self.bucket.objects[name]
            parts.append(
                f"<Contents><Key>{escape(name)}</Key><LastModified>{_TIME}</LastModified>"
                f"<ETag>{escape(stored.etag)}</ETag><Size>{len(stored.content)}</Size></Contents>"
            )
        more = f"<NextContinuationToken>{escape(token)}</NextContinuationToken>" if token else ""
        head = f"<KeyCount>{len(page)}</KeyCount><IsTruncated>{'true' if token else 'false'}</IsTruncated>{more}"
        return 200, {}, f"<ListBucketResult>{head}{''.join(parts)}</ListBucketResult>".encode()


def _error(status: int, message: str) -> Response:
    return status, {}, f"<Error><Code>Test</Code><Message>{escape(message)}</Message></Error>".encode()


class BucketServer(ThreadingHTTPServer):
    """The server on a free port of this machine."""

    daemon_threads = True

    def __init__(self, *, is_google: bool) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.is_google = is_google
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
