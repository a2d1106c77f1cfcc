"""Fixtures: web and mail servers on this machine."""

import contextlib
import http.server
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from detloom.schemas.run_file.notifications import Webhook

# Self-signed, for 127.0.0.1, with its key: openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes
# -days 26000 -subj /CN=test -addext subjectAltName=IP:127.0.0.1
CERTIFICATE = Path(__file__).with_name("server.pem")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def trusted(monkeypatch) -> None:
    """Make this process trust the servers."""
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))


def encrypt(connection: Any) -> Any:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context.wrap_socket(connection, server_side=True)


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address, daemon_threads, block_on_close = True, True, False

    def handle_error(self, *_: Any) -> None:
        pass  # a client that hangs up, or does not trust the certificate


@contextlib.contextmanager
def serving(handler: type, *, tls: bool = False) -> Iterator[int]:
    """Serve requests in a thread; yield the port."""
    server = Server(("127.0.0.1", 0), handler)
    if tls:
        server.socket = encrypt(server.socket)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
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
def web_server(*, tls: bool = False) -> Iterator[WebServer]:
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

    with serving(Handler, tls=tls) as port:
        state.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
        yield state


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as state:
        yield state


@pytest.fixture
def https_web() -> Iterator[WebServer]:
    with web_server(tls=True) as state:
        yield state


@pytest.fixture
def hook(web, monkeypatch) -> Webhook:
    """Return the settings of a webhook to the web server."""
    monkeypatch.setenv("HOOK", f"{web.url}/services/geheim")
    return Webhook(url="env:HOOK")


@dataclass
class MailServer:
    """A mail server with the part of SMTP that smtplib uses.

    Attributes:
        answers: response to a command or to one whole line, such as {"RCPT": "550 no"}; "hang" does not respond.
        offers: extensions before STARTTLS.
        commands: all received commands, one line each.
        mails: the data of each mail.
        encrypted: for each mail, True if it came through TLS.
    """

    port: int = 0
    answers: dict[str, str] = field(default_factory=dict)
    offers: tuple[str, ...] = ("STARTTLS", "AUTH PLAIN LOGIN")
    commands: list[str] = field(default_factory=list)
    mails: list[bytes] = field(default_factory=list)
    encrypted: list[bool] = field(default_factory=list)


@contextlib.contextmanager
def mail_server(*, tls: bool = False) -> Iterator[MailServer]:
    state = MailServer()

    class Handler(socketserver.StreamRequestHandler):
        is_encrypted = tls

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
                    self.obey(verb.upper(), state.commands[-1])

        def obey(self, verb: str, command: str) -> None:
            answer = state.answers.get(command) or state.answers.get(verb)
            match verb:
                case _ if answer == "hang":
                    self.rfile.read(1)  # until the client gives up
                case _ if answer is not None:
                    self.say(answer)
                case "EHLO":
                    offers = [
                        f"250-{offer}" for offer in state.offers if not (self.is_encrypted and offer == "STARTTLS")
                    ]
                    self.say("250-here", *offers, "250 SIZE 1000000")
                case "STARTTLS":
                    self.say("220 go on")
                    self.request = encrypt(self.request)
                    self.is_encrypted = True
                    self.setup()
                case "AUTH":
                    self.say("235 welcome")
                case "DATA":
                    self.say("354 go on")
                    state.mails.append(b"".join(iter(self.rfile.readline, b".\r\n")))
                    state.encrypted.append(self.is_encrypted)
                    self.say("250 taken")
                case _:
                    self.say("221 bye" if verb == "QUIT" else "250 fine")

    with serving(Handler, tls=tls) as port:
        state.port = port
        yield state


@pytest.fixture
def smtp() -> Iterator[MailServer]:
    with mail_server() as state:
        yield state


@pytest.fixture
def smtps() -> Iterator[MailServer]:
    with mail_server(tls=True) as state:
        yield state
