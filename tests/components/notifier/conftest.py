"""Fixtures: web and mail servers on this machine."""

import contextlib
import datetime
import http.server
import ipaddress
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory) -> Path:
    """Return a self-signed certificate for 127.0.0.1, in one file with its key."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime(2020, 1, 1)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(datetime.datetime(2099, 1, 1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("certificate") / "server.pem"
    pkcs8, clear = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, pkcs8, clear)
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return path


@pytest.fixture
def trusted(certificate, monkeypatch) -> Path:
    """Return the certificate and make this process trust it."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    return certificate


def server_context(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


@contextlib.contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class WebServer:
    """A web server that responds with `statuses` in order, repeating the last one, and stores the requests."""

    url: str = ""
    statuses: list[int] = field(default_factory=lambda: [200])
    headers: dict[str, str] = field(default_factory=dict)
    answer: Callable[[http.server.BaseHTTPRequestHandler], None] | None = None
    requests: list[Request] = field(default_factory=list)


@contextlib.contextmanager
def web_server(certificate: Path | None = None) -> Iterator[WebServer]:
    state = WebServer()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            state.requests.append(Request(self.path, dict(self.headers), body))
            if state.answer is not None:
                return state.answer(self)
            self.send_response(state.statuses.pop(0) if len(state.statuses) > 1 else state.statuses[0])
            for name, value in {**state.headers, "Content-Length": "0"}.items():
                self.send_header(name, value)
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_):
            pass

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads, block_on_close = True, False

        def handle_error(self, *_: Any) -> None:
            pass  # a client that hangs up, or does not trust the certificate

    server = Server(("127.0.0.1", 0), Handler)
    if certificate is not None:
        server.socket = server_context(certificate).wrap_socket(server.socket, server_side=True)
    state.url = f"{'http' if certificate is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    with serving(server):
        yield state


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as state:
        yield state


@pytest.fixture
def https_web(certificate) -> Iterator[WebServer]:
    with web_server(certificate) as state:
        yield state


@dataclass
class MailServer:
    """A mail server with the part of SMTP that smtplib uses.

    Attributes:
        answers: response to a command or to one whole line, such as {"RCPT": "550 no"}; "hang" does not respond,
            "endless" never stops.
        commands: all received commands, one line each.
        mails: the data of each mail.
        encrypted: for each mail, True if it came through TLS.
    """

    port: int = 0
    answers: dict[str, str] = field(default_factory=dict)
    offers: list[str] = field(default_factory=lambda: ["STARTTLS", "AUTH PLAIN LOGIN"])
    commands: list[str] = field(default_factory=list)
    mails: list[bytes] = field(default_factory=list)
    encrypted: list[bool] = field(default_factory=list)
    is_over: bool = False


@contextlib.contextmanager
def mail_server(certificate: Path, *, tls: bool = False) -> Iterator[MailServer]:
    state = MailServer()
    context = server_context(certificate)

    class Handler(socketserver.StreamRequestHandler):
        def setup(self):
            self.is_encrypted = tls
            if tls:
                self.request = context.wrap_socket(self.request, server_side=True)
            super().setup()

        def say(self, *lines: str) -> None:
            self.wfile.write("".join(f"{line}\r\n" for line in lines).encode())

        def handle(self) -> None:
            with contextlib.suppress(OSError, ValueError):
                self.say("220 here")
                while line := self.rfile.readline(2000).decode().rstrip("\r\n"):
                    verb, _, rest = line.partition(" ")
                    keyword, colon, address = rest.partition(":")  # smtplib writes TO: or to: depending on its version
                    rest = f"{keyword.upper()}:{address}" if colon else rest
                    state.commands.append(f"{verb.upper()} {rest}".strip())
                    if self.obey(verb.upper(), state.commands[-1]) == "QUIT":
                        return

        def obey(self, verb: str, command: str) -> str:
            answer = state.answers.get(command) or state.answers.get(verb)
            if answer == "hang":
                self.rfile.read(1)  # until the client gives up
                return "QUIT"
            if answer == "endless":
                while not state.is_over:
                    self.wfile.write(b"250-" + b"x" * 500 + b"\r\n")
            if answer is not None:
                self.say(answer)
            elif verb == "EHLO":
                offers = [each for each in state.offers if not (self.is_encrypted and each == "STARTTLS")]
                self.say("250-here", *(f"250-{offer}" for offer in offers), "250 SIZE 1000000")
            elif verb == "STARTTLS":
                self.say("220 go on")
                self.request = context.wrap_socket(self.request, server_side=True)
                self.is_encrypted = True
                super().setup()
            elif verb == "AUTH":
                self.say("235 welcome")
            elif verb == "DATA":
                self.say("354 go on")
                lines = list(iter(self.rfile.readline, b".\r\n"))
                state.mails.append(b"".join(lines))
                state.encrypted.append(self.is_encrypted)
                self.say("250 taken")
            else:
                self.say("221 bye" if verb == "QUIT" else "250 fine")
            return verb

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address, daemon_threads, block_on_close = True, True, False

        def handle_error(self, *_: Any) -> None:
            pass  # a client that does not trust the certificate

    server = Server(("127.0.0.1", 0), Handler)
    state.port = server.server_address[1]
    try:
        with serving(server):
            yield state
    finally:
        state.is_over = True


@pytest.fixture
def smtp(certificate) -> Iterator[MailServer]:
    with mail_server(certificate) as state:
        yield state


@pytest.fixture
def smtps(certificate) -> Iterator[MailServer]:
    with mail_server(certificate, tls=True) as state:
        yield state
