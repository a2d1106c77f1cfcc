"""Servers beside fake-gcs-server: object_store_proxy.py SERVER.pem.

- 127.0.0.1:443 passes requests of TensorFlow's client for storage.googleapis.com to 127.0.0.1:4443. It drops
  `Transfer-Encoding: identity`, which Go's server refuses, and makes addresses of uploads begin with https.
- 127.0.0.1:4444 is for Google's client and for obstore. It executes the requests of a batch, and translates writes and
  listings of the XML API to the JSON API: fake-gcs-server reads neither.
- 127.0.0.1:8080 is a metadata server of Google Cloud with a token that the test server does not check.
"""

import email
import http.client
import json
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit
from xml.sax.saxutils import escape

STORE = ("127.0.0.1", 4443)
_NOT_PASSED = {"transfer-encoding", "connection", "keep-alive", "content-length"}


class Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _read_body(self) -> bytes:
        if "chunked" not in (self.headers.get("Transfer-Encoding") or "").lower():
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _pass_on(self) -> None:
        body = self._read_body()
        if self.path.partition("?")[0] == "/batch/storage/v1":
            self._execute_batch(body)
            return
        if not self.path.startswith(("/storage/", "/upload/", "/download/")) and self.headers["Host"].startswith("127"):
            self._execute_xml(body)
            return
        headers = {key: value for key, value in self.headers.items() if key.lower() not in _NOT_PASSED}
        scheme = "https" if isinstance(self.connection, ssl.SSLSocket) else "http"
        headers |= {"X-Forwarded-Proto": scheme, "Content-Length": str(len(body))}
        store = http.client.HTTPConnection(*STORE)
        store.request(self.command, self.path, body, headers)
        response = store.getresponse()
        content = response.read()
        self.send_response(response.status)
        for key, value in response.getheaders():
            if key.lower() == "location":
                path = value.partition("://")[2].partition("/")[2]
                self.send_header(key, f"{scheme}://{self.headers['Host']}/{path}")
            elif key.lower() not in _NOT_PASSED:
                self.send_header(key, value)
        length = response.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        self.wfile.write(content)
        store.close()

    def _execute_batch(self, body: bytes) -> None:
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        content = b""
        for part in email.message_from_bytes(head + body).get_payload():
            request_line, _, rest = part.get_payload().partition("\n")
            method, address, _ = request_line.split()
            inner = email.message_from_string(rest)
            url, store = urlsplit(address), http.client.HTTPConnection(*STORE)
            headers = {"Content-Type": inner["Content-Type"]} if inner["Content-Type"] else {}
            store.request(method, f"{url.path}?{url.query}", inner.get_payload().strip().encode(), headers)
            response = store.getresponse()
            answer = response.read()
            kind = response.getheader("Content-Type") or "application/json"
            content += b"--batch\r\nContent-Type: application/http\r\n\r\n"
            content += f"HTTP/1.1 {response.status} {response.reason}\r\nContent-Type: {kind}\r\n\r\n".encode()
            content += answer + b"\r\n"
            store.close()
        content += b"--batch--\r\n"
        self.send_response(200)
        self.send_header("Content-Type", "multipart/mixed; boundary=batch")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _execute_xml(self, body: bytes) -> None:
        url = urlsplit(self.path)
        bucket, _, name = url.path.lstrip("/").partition("/")
        query, objects = dict(parse_qsl(url.query)), f"/storage/v1/b/{bucket}/o"
        generation = self.headers.get("x-goog-if-generation-match")
        condition = f"&ifGenerationMatch={generation}" if generation else ""
        if not name:
            options = {"prefix": query.get("prefix", ""), "delimiter": query.get("delimiter", "")}
            status, _, answer = _request("GET", f"{objects}?{urlencode(options)}")
            self._send(
                status, {}, _listing(json.loads(answer), query.get("start-after", "")) if status == 200 else answer
            )
        elif source := self.headers.get("x-goog-copy-source"):
            address = f"{objects}/{source.partition('/')[2]}/rewriteTo/b/{bucket}/o/{name}"
            status, _, answer = _request("POST", address, b"{}")
            self._send(status, {}, b"<CopyObjectResult><ETag>none</ETag></CopyObjectResult>")
        elif self.command == "PUT":
            address = f"/upload{objects}?uploadType=media&name={name}{condition}"
            status, _, answer = _request("POST", address, body)
            stored = json.loads(answer) if status == 200 else {}
            headers = {"ETag": stored.get("etag", ""), "x-goog-generation": stored.get("generation", "")}
            self._send(status, headers, b"")
        elif self.command == "DELETE":
            self._send(_request("DELETE", f"{objects}/{name}")[0], {}, b"")
        else:
            status, _, answer = _request("GET", f"{objects}/{name}")
            stored = json.loads(answer) if status == 200 else {}
            headers = {"ETag": stored.get("etag", ""), "x-goog-generation": stored.get("generation", "")}
            headers["Last-Modified"] = "Fri, 02 Jan 2026 03:04:05 GMT"
            if self.command == "HEAD" or status != 200:
                self._send(status, headers | {"Content-Length": stored.get("size", "0")}, b"")
                return
            span = {"Range": self.headers["Range"]} if "Range" in self.headers else {}
            status, answered, answer = _request("GET", f"{objects}/{name}?alt=media", headers=span)
            if "Content-Range" in answered:
                headers["Content-Range"] = answered["Content-Range"]
            self._send(status, headers, answer)

    def _send(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = _pass_on


def _request(
    method: str, address: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> tuple[int, http.client.HTTPMessage, bytes]:
    store = http.client.HTTPConnection(*STORE)
    store.request(method, address, body, headers or {})
    response = store.getresponse()
    content = response.read()
    store.close()
    return response.status, response.headers, content


def _listing(listed: dict[str, Any], after: str) -> bytes:
    """Return a listing of the JSON API in the form of the XML API."""
    parts = [f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in listed.get("prefixes", ())]
    parts += [
        f"<Contents><Key>{escape(found['name'])}</Key><LastModified>{found['updated']}</LastModified>"
        f"<ETag>{escape(found['etag'])}</ETag><Size>{found['size']}</Size></Contents>"
        for found in listed.get("items", ())
        if found["name"] > after
    ]
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(parts)}</ListBucketResult>".encode()


class Metadata(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answers = {
            "token": json.dumps({"access_token": "test", "expires_in": 3600, "token_type": "Bearer"}),
            "email": "test@example.com",
            "project-id": "test",
        }
        name = self.path.partition("?")[0].rstrip("/").rpartition("/")[2]
        account = json.dumps({"email": answers["email"], "scopes": [], "aliases": ["default"]})
        content = answers.get(name, account if "service-accounts" in self.path else "").encode()
        self.send_response(200)
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Type", "application/json" if content.startswith(b"{") else "text/plain")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def main() -> None:
    for server in (ThreadingHTTPServer(("127.0.0.1", 8080), Metadata), ThreadingHTTPServer(("127.0.0.1", 4444), Proxy)):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    proxy = ThreadingHTTPServer(("127.0.0.1", 443), Proxy)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[1])
    proxy.socket = context.wrap_socket(proxy.socket, server_side=True, do_handshake_on_connect=False)
    proxy.serve_forever()


if __name__ == "__main__":
    main()
