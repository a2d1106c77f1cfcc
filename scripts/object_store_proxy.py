"""Servers beside fake-gcs-server: object_store_proxy.py SERVER.pem.

- 127.0.0.1:443 passes requests of TensorFlow's client for storage.googleapis.com to 127.0.0.1:4443. It drops
  `Transfer-Encoding: identity`, which Go's server refuses, and makes addresses of uploads begin with https.
- 127.0.0.1:8080 is a metadata server of Google Cloud with a token that the test server does not check.
"""

import http.client
import json
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

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
        headers = {key: value for key, value in self.headers.items() if key.lower() not in _NOT_PASSED}
        headers |= {"X-Forwarded-Proto": "https", "Content-Length": str(len(body))}
        store = http.client.HTTPConnection(*STORE)
        store.request(self.command, self.path, body, headers)
        response = store.getresponse()
        content = response.read()
        self.send_response(response.status)
        for key, value in response.getheaders():
            if key.lower() == "location":
                address = f"https://{self.headers['Host']}"
                self.send_header(
                    key, value.replace(f"http://{STORE[0]}:{STORE[1]}", address).replace("http://", "https://")
                )
            elif key.lower() not in _NOT_PASSED:
                self.send_header(key, value)
        length = response.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        self.wfile.write(content)
        store.close()

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
    metadata = ThreadingHTTPServer(("127.0.0.1", 8080), Metadata)
    threading.Thread(target=metadata.serve_forever, daemon=True).start()
    proxy = ThreadingHTTPServer(("127.0.0.1", 443), Proxy)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[1])
    proxy.socket = context.wrap_socket(proxy.socket, server_side=True, do_handshake_on_connect=False)
    proxy.serve_forever()


if __name__ == "__main__":
    main()
