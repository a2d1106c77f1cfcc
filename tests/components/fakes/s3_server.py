"""The part of the S3 API that boto3 uses here.

Written from the documentation of the API (docs.aws.amazon.com/AmazonS3): ListObjectsV2, HeadObject, GetObject
with ranges, PutObject with `If-None-Match` and `If-Match`, CopyObject and DeleteObject; the bucket is in the path.
"""

import hashlib
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

from object_server import BUCKET, ApiError, Handler, ObjectServer, Response, StoredObject

_METADATA = "x-amz-meta-"
_HTTP_TIME = "Fri, 02 Jan 2026 03:04:05 GMT"
_TIME = "2026-01-02T03:04:05.000Z"
_CODES = {404: "NoSuchKey", 412: "PreconditionFailed", 416: "InvalidRange", 503: "SlowDown"}


class S3Handler(Handler):
    def respond(self, body: bytes) -> Response:
        url = urlsplit(self.path)
        bucket_name, _, name = unquote(url.path).lstrip("/").partition("/")
        if bucket_name != BUCKET:
            raise ApiError(404, "The specified bucket does not exist")
        if not name:
            return self._list(dict(parse_qsl(url.query, keep_blank_values=True)))
        if self.command == "DELETE":
            self.bucket.objects.pop(name, None)
            return 204, {}, b""
        if self.command == "PUT" and "x-amz-copy-source" in self.headers:
            source = unquote(self.headers["x-amz-copy-source"]).lstrip("/").partition("/")[2]
            found = self._existing(source)
            etag = _etag(self.bucket.put(name, found.content, found.properties))
            result = (
                f"<CopyObjectResult><ETag>{escape(etag)}</ETag><LastModified>{_TIME}</LastModified></CopyObjectResult>"
            )
            return 200, {}, result.encode()
        if self.command == "PUT":
            return self._put(name, body)
        return self._get(name)

    def format_error(self, status: int, message: str) -> Response:
        code = _CODES.get(status, "AccessDenied")
        return status, {}, f"<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>".encode()

    def _existing(self, name: str) -> StoredObject:
        if name not in self.bucket.objects:
            raise ApiError(404, "The specified key does not exist.")
        return self.bucket.objects[name]

    def _put(self, name: str, body: bytes) -> Response:
        found = self.bucket.objects.get(name)
        del self.headers[self.bucket.ignored_condition]
        if self.headers.get("If-None-Match") == "*" and found:
            raise ApiError(412, "At least one of the pre-conditions you specified did not hold")
        if "If-Match" in self.headers and self.headers["If-Match"] != _etag(self._existing(name)):
            raise ApiError(412, "At least one of the pre-conditions you specified did not hold")
        metadata = {key.lower(): value for key, value in self.headers.items() if key.lower().startswith(_METADATA)}
        stored = self.bucket.put(name, self.bucket.damaged(name, body), {"metadata": metadata})
        return 200, {"ETag": _etag(stored)}, b""

    def _get(self, name: str) -> Response:
        found = self._existing(name)
        if self.headers.get("If-Match", _etag(found)) != _etag(found):
            raise ApiError(412, "At least one of the pre-conditions you specified did not hold")
        headers = {
            "ETag": _etag(found),
            "Last-Modified": "Fri, 02 Jan 2026 03:04:05 GMT",
            **found.properties.get("metadata", {}),
        }
        return self.format_content(found.content, headers)

    def _list(self, query: dict[str, str]) -> Response:
        page, token = self.bucket.list_page(
            query.get("prefix", ""),
            query.get("delimiter", ""),
            after=query.get("continuation-token") or query.get("start-after", ""),
            size=int(query.get("max-keys", 1000)),
        )
        parts = []
        for name, is_prefix in page.items():
            if is_prefix:
                parts.append(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>")
                continue
            found = self.bucket.objects[name]
            parts.append(
                f"<Contents><Key>{escape(name)}</Key><LastModified>{_TIME}</LastModified>"
                f"<ETag>{escape(_etag(found))}</ETag><Size>{len(found.content)}</Size></Contents>"
            )
        more = f"<NextContinuationToken>{escape(token)}</NextContinuationToken>" if token else ""
        head = f"<KeyCount>{len(page)}</KeyCount><IsTruncated>{'true' if token else 'false'}</IsTruncated>{more}"
        return 200, {}, f"<ListBucketResult>{head}{''.join(parts)}</ListBucketResult>".encode()


def _etag(found: StoredObject) -> str:
    return f'"{hashlib.md5(found.content, usedforsecurity=False).hexdigest()}"'


class S3Server(ObjectServer):
    """The server on a free port of this machine."""

    def __init__(self) -> None:
        super().__init__(S3Handler)
