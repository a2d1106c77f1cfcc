"""An HTTP server that speaks the part of Cloud Storage's JSON API that Google's client uses here, with faults.

Written from the documentation of the API (storage.googleapis.com/storage/v1): objects list, get, download with ranges,
upload (multipart and resumable), rewrite and delete, with `ifGenerationMatch`.
"""

import base64
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

import google_crc32c

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
        before_request: called before each request is executed.
        after_request: called after each request that was executed.
        damage: objects whose name ends with this lose half of their bytes when uploaded.
        page_size: most names in one response to a listing.
        latency_seconds: added to each request; requests of several connections wait at the same time.
    """

    objects: dict[str, StoredObject] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    faults: dict[int, Fault] = field(default_factory=dict)
    before_request: Callable[[], None] = lambda: None
    after_request: Callable[[], None] = lambda: None
    damage: str = ""
    page_size: int = 1000
    latency_seconds: float = 0.0
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

    def resource(self, name: str) -> dict[str, Any]:
        found = self.objects[name]
        return {
            "kind": "storage#object",
            "bucket": BUCKET,
            "name": name,
            "size": str(len(found.content)),
            "generation": str(found.generation),
            "metageneration": "1",
            "updated": "2026-01-02T03:04:05.678Z",
            **found.properties,
        }


class _ApiError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


Response = tuple[int, dict[str, str], bytes]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "GoogleStorageServer"

    def log_message(self, *args: object) -> None:
        """Log nothing."""

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        bucket = self.bucket = self.server.bucket
        time.sleep(bucket.latency_seconds)
        with bucket.mutex:
            fault = None
            if urlsplit(self.path).path != f"/storage/v1/b/{BUCKET}":  # version 3 of the client sends it at any time
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
                bucket.before_request()
                response = self._respond(body)
                bucket.after_request()
        if fault in ("answer_lost", "stalled"):
            bucket.stalled_done.set()
            self.close_connection = True
            return
        status, headers, content = response
        self.send_response(status)
        for key, value in {"Content-Type": "application/json", **headers, "Content-Length": len(content)}.items():
            self.send_header(key, str(value))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if fault == "cut" else content)
        self.close_connection = fault == "cut"

    do_GET = do_POST = do_PUT = do_DELETE = _handle

    def _respond(self, body: bytes) -> Response:
        url = urlsplit(self.path)
        query, parts = dict(parse_qsl(url.query)), url.path.strip("/").split("/")
        is_upload, is_download = parts[0] == "upload", parts[0] == "download"
        parts = parts[1:] if is_upload or is_download else parts
        try:
            if parts[:3] != ["storage", "v1", "b"] or parts[3] != BUCKET:
                raise _ApiError(404, "The specified bucket does not exist.")
            if len(parts) == 4:
                raise _ApiError(403, "Permission 'storage.buckets.get' denied.")
            names = [unquote(part) for part in parts[5:]]
            if is_upload:
                return self._upload(query, body)
            if not names:
                return self._list(query)
            if "rewriteTo" in names:
                return self._rewrite(names[0], names[-1], query, json.loads(body or b"{}"))
            if self.command == "DELETE":
                self._check_generation(names[0], query)
                self._existing(names[0])
                del self.bucket.objects[names[0]]
                return 204, {}, b""
            if is_download or query.get("alt") == "media":
                return self._download(names[0], query)
            self._existing(names[0], query)
            return _json(self.bucket.resource(names[0]))
        except _ApiError as error:
            return _error(error.status, str(error))

    def _existing(self, name: str, query: dict[str, str] | None = None) -> StoredObject:
        found = self.bucket.objects.get(name)
        if found is None or int((query or {}).get("generation", found.generation)) != found.generation:
            raise _ApiError(404, f"No such object: {BUCKET}/{name}")
        return found

    def _check_generation(self, name: str, query: dict[str, str]) -> None:
        found = self.bucket.objects.get(name)
        generation = found.generation if found else 0
        if "ifGenerationMatch" in query and int(query["ifGenerationMatch"]) != generation:
            if found is None and self.command == "DELETE":
                raise _ApiError(404, f"No such object: {BUCKET}/{name}")
            raise _ApiError(412, "At least one of the pre-conditions you specified did not hold.")

    def _list(self, query: dict[str, str]) -> Response:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        size = min(int(query.get("maxResults", self.bucket.page_size)), self.bucket.page_size)
        start, offset = query.get("pageToken", ""), query.get("startOffset", "")
        found: dict[str, bool] = {}  # name or prefix: is it a prefix
        for name in sorted(self.bucket.objects):
            if name.startswith(prefix) and name >= offset:
                head, mark, _ = name.removeprefix(prefix).partition(delimiter) if delimiter else (name, "", "")
                found[prefix + head + mark if mark else name] = bool(mark)
        page = [name for name in found if name > start]
        more = {"nextPageToken": page[size - 1]} if len(page) > size else {}
        return _json(
            {
                "kind": "storage#objects",
                "items": [self.bucket.resource(name) for name in page[:size] if not found[name]],
                "prefixes": [name for name in page[:size] if found[name]],
                **more,
            }
        )

    def _download(self, name: str, query: dict[str, str]) -> Response:
        found = self._existing(name, query)
        checksum = base64.b64encode(google_crc32c.Checksum(found.content).digest()).decode()
        headers = {"X-Goog-Generation": str(found.generation), "X-Goog-Hash": f"crc32c={checksum}"}
        status, content = 200, found.content
        if "Range" in self.headers:
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            if int(first) >= len(content):
                raise _ApiError(416, "Request range not satisfiable")
            stop = min(int(last or len(content)) + 1, len(content))
            headers["Content-Range"] = f"bytes {first}-{stop - 1}/{len(content)}"
            status, content = 206, content[int(first) : stop]
        return status, {**headers, "Content-Type": "application/octet-stream"}, content

    def _upload(self, query: dict[str, str], body: bytes) -> Response:
        if query["uploadType"] == "multipart":
            boundary = self.headers["Content-Type"].partition("boundary=")[2].strip("\"'").encode()
            _, first, second, _ = body.split(b"--" + boundary)
            properties = json.loads(first.split(b"\r\n\r\n", 1)[1])
            return self._store(properties, second.split(b"\r\n\r\n", 1)[1].removesuffix(b"\r\n"), query)
        if self.command == "POST":  # the start of a resumable upload
            upload_id = f"upload-{len(self.bucket.uploads)}"
            self.bucket.uploads[upload_id] = {"properties": json.loads(body), "query": query, "content": b""}
            host = self.headers["Host"]
            location = f"http://{host}/upload/storage/v1/b/{BUCKET}/o?uploadType=resumable&upload_id={upload_id}"
            return 200, {"Location": location}, b"{}"
        upload = self.bucket.uploads[query["upload_id"]]
        span, _, total = self.headers["Content-Range"].removeprefix("bytes ").partition("/")
        if span != "*":
            upload["content"] = upload["content"][: int(span.partition("-")[0])] + body
        if total != "*" and len(upload["content"]) == int(total):
            return self._store(upload["properties"], upload["content"], upload["query"])
        end = len(upload["content"]) - 1
        return 308, {"Range": f"bytes=0-{end}"} if end >= 0 else {}, b""

    def _store(self, properties: dict[str, Any], content: bytes, query: dict[str, str]) -> Response:
        name = properties["name"]
        self._check_generation(name, query)
        is_damaged = self.bucket.damage and name.endswith(self.bucket.damage)
        self.bucket.put(name, content[: len(content) // 2] if is_damaged else content, properties)
        return _json(self.bucket.resource(name))

    def _rewrite(self, source: str, target: str, query: dict[str, str], properties: dict[str, Any]) -> Response:
        found = self._existing(source)
        self._check_generation(target, query)
        self.bucket.put(target, found.content, properties or found.properties)
        size = str(len(found.content))
        resource = self.bucket.resource(target)
        return _json({"done": True, "totalBytesRewritten": size, "objectSize": size, "resource": resource})


def _json(value: dict[str, Any]) -> Response:
    return 200, {}, json.dumps(value).encode()


def _error(status: int, message: str) -> Response:
    error = {"code": status, "message": message, "errors": [{"message": message, "reason": "test"}]}
    return status, {}, json.dumps({"error": error}).encode()


class GoogleStorageServer(ThreadingHTTPServer):
    """The server on a free port of this machine."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
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
