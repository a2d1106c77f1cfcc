"""The part of Cloud Storage's JSON API that Google's client uses here.

Written from the documentation of the API (storage.googleapis.com/storage/v1): objects list, get, download with ranges,
upload (multipart and resumable), rewrite and delete, with `ifGenerationMatch`.
"""

import base64
import json
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import google_crc32c
from object_server import BUCKET, ApiError, Handler, ObjectServer, Response, StoredObject


class GoogleHandler(Handler):
    uncounted_path = f"/storage/v1/b/{BUCKET}"  # version 3 of the client sends it at any time

    def respond(self, body: bytes) -> Response:
        url = urlsplit(self.path)
        query, parts = dict(parse_qsl(url.query)), url.path.strip("/").split("/")
        is_upload, is_download = parts[0] == "upload", parts[0] == "download"
        parts = parts[1:] if is_upload or is_download else parts
        if parts[:3] != ["storage", "v1", "b"] or parts[3] != BUCKET:
            raise ApiError(404, "The specified bucket does not exist.")
        if len(parts) == 4:
            raise ApiError(403, "Permission 'storage.buckets.get' denied.")
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
        return _json(self._resource(names[0]))

    def _resource(self, name: str) -> dict[str, Any]:
        found = self.bucket.objects[name]
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

    def format_error(self, status: int, message: str) -> Response:
        error = {"code": status, "message": message, "errors": [{"message": message, "reason": "test"}]}
        return status, {"Content-Type": "application/json"}, json.dumps({"error": error}).encode()

    def _existing(self, name: str, query: dict[str, str] | None = None) -> StoredObject:
        found = self.bucket.objects.get(name)
        if found is None or int((query or {}).get("generation", found.generation)) != found.generation:
            raise ApiError(404, f"No such object: {BUCKET}/{name}")
        return found

    def _check_generation(self, name: str, query: dict[str, str]) -> None:
        found = self.bucket.objects.get(name)
        generation = found.generation if found else 0
        if "ifGenerationMatch" in query and int(query["ifGenerationMatch"]) != generation:
            if found is None and self.command == "DELETE":
                raise ApiError(404, f"No such object: {BUCKET}/{name}")
            raise ApiError(412, "At least one of the pre-conditions you specified did not hold.")

    def _list(self, query: dict[str, str]) -> Response:
        page, token = self.bucket.list_page(
            query.get("prefix", ""),
            query.get("delimiter", ""),
            first=query.get("startOffset", ""),
            after=query.get("pageToken", ""),
            size=int(query.get("maxResults", 1000)),
        )
        return _json(
            {
                "kind": "storage#objects",
                "items": [self._resource(name) for name, is_prefix in page.items() if not is_prefix],
                "prefixes": [name for name, is_prefix in page.items() if is_prefix],
                **({"nextPageToken": token} if token else {}),
            }
        )

    def _download(self, name: str, query: dict[str, str]) -> Response:
        found = self._existing(name, query)
        checksum = base64.b64encode(google_crc32c.Checksum(found.content).digest()).decode()
        headers = {"X-Goog-Generation": str(found.generation), "X-Goog-Hash": f"crc32c={checksum}"}
        return self.format_content(found.content, {**headers, "Content-Type": "application/octet-stream"})

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
        self.bucket.put(name, self.bucket.damaged(name, content), properties)
        return _json(self._resource(name))

    def _rewrite(self, source: str, target: str, query: dict[str, str], properties: dict[str, Any]) -> Response:
        found = self._existing(source)
        self._check_generation(target, query)
        self.bucket.put(target, found.content, properties or found.properties)
        size = str(len(found.content))
        resource = self._resource(target)
        return _json({"done": True, "totalBytesRewritten": size, "objectSize": size, "resource": resource})


def _json(value: dict[str, Any]) -> Response:
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()


class GoogleStorageServer(ObjectServer):
    """The server on a free port of this machine."""

    def __init__(self) -> None:
        super().__init__(GoogleHandler)
