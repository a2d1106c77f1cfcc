"""Servers beside fake-gcs-server: object_store_proxy.py SERVER.pem.

- 127.0.0.1:443 passes requests of TensorFlow's client for storage.googleapis.com to 127.0.0.1:4443. It drops
  `Transfer-Encoding: identity`, which Go's server refuses, and makes addresses of uploads begin with https.
- 127.0.0.1:4444 is for Google's client. It executes the requests of a batch, which fake-gcs-server does not read.
- 127.0.0.1:8080 is a metadata server of Google Cloud with a token that the test server does not check.
"""

import email
import http.client
import json
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

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

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = _pass_on


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
