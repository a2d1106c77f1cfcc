"""Archives from a web server: the cache, faults of the network, and archives that are made to do harm."""

import gzip
import hashlib
import io
import logging
import os
import tarfile
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.model.checkpoint_address import ArchiveAddress
from detloom.trainer_module.weights import downloaded_archive
from detloom.trainer_module.weights.downloaded_archive import (
    archive_by_hand,
    fetch_archive,
    fetch_checkpoint,
)

ZOO = {
    "ssd/pipeline.config": b"model {}",
    "ssd/checkpoint/checkpoint": b'model_checkpoint_path: "ckpt-0"',
    "ssd/checkpoint/ckpt-0.index": b"index",
    "ssd/checkpoint/ckpt-0.data-00000-of-00001": b"data" * 1000,
    "ssd/saved_model/saved_model.pb": b"graph",
    "ssd/saved_model/variables/variables.index": b"other index",
    "ssd/saved_model/variables/variables.data-00000-of-00001": b"other data",
}
Respond = Callable[[BaseHTTPRequestHandler], None]


def start_response(request: BaseHTTPRequestHandler, length: str = "") -> None:
    request.send_response(200)
    if length:
        request.send_header("Content-Length", length)
    request.end_headers()


class Server:
    """A web server on this machine; `responses` has a function by path."""

    def __init__(self) -> None:
        self.responses: dict[str, Respond] = {}
        self.requests: Counter[str] = Counter()
        self.ended = threading.Event()  # lets functions that wait return
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.requests[self.path] += 1
                server.responses[self.path](self)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def address(self, path: str = "/ssd.tar.gz", sha256: str = "") -> ArchiveAddress:
        return ArchiveAddress(self.url + path, sha256)

    def serve(self, data: bytes, path: str = "/ssd.tar.gz", length: int | None = None) -> ArchiveAddress:
        """Respond with these bytes; `length` is the stated number, -1 states none."""

        def respond(request: BaseHTTPRequestHandler) -> None:
            stated = len(data) if length is None else length
            start_response(request, "" if stated == -1 else str(stated))
            request.wfile.write(data)

        self.responses[path] = respond
        return self.address(path)

    def redirect(self, target: str, path: str = "/ssd.tar.gz") -> ArchiveAddress:
        def respond(request: BaseHTTPRequestHandler) -> None:
            request.send_response(302)
            request.send_header("Location", target)
            request.end_headers()

        self.responses[path] = respond
        return self.address(path)

    def stop(self) -> None:
        self.ended.set()
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def pack(files: dict[str, bytes], *members: tarfile.TarInfo) -> bytes:
    """Return a tar.gz with files, and other members without content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for member in members:
            tar.addfile(member)
    return buffer.getvalue()


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def refusal(address: ArchiveAddress, cache: Path) -> str:
    """Return the message of a failed download, which leaves nothing but the lock's file."""
    with pytest.raises(InputError) as caught:
        fetch_archive(address, cache)
    assert [path for path in cache.iterdir() if path.suffix != ".lock"] == []
    assert str(caught.value).startswith(f"train.fine_tune_checkpoint: {address} ")
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- the cache --------------------------------------------------------------------------------------------------------


def test_an_archive_of_the_zoo_is_downloaded_once(server, cache, caplog):
    caplog.set_level(logging.INFO, "detloom")
    address = server.serve(pack(ZOO))
    path = Path(fetch_archive(address, cache))
    assert path.name == "ckpt-0"
    assert path.with_name("ckpt-0.index").read_bytes() == b"index"
    assert path.with_name("ckpt-0.data-00000-of-00001").read_bytes() == b"data" * 1000
    assert fetch_archive(address, cache) == str(path)
    assert server.requests == {"/ssd.tar.gz": 1}
    names = {each.name for each in path.parents[2].rglob("*") if each.is_file()}
    assert names == {"checkpoint", "ckpt-0.index", "ckpt-0.data-00000-of-00001"}  # no SavedModel
    assert sorted(each.suffix for each in cache.iterdir()) == ["", ".lock"]
    assert f"{server.url}/ssd.tar.gz: downloading" in caplog.text
    other = server.serve(pack({"other.index": b""}), "/elsewhere/ssd.tar.gz")  # the same name
    assert fetch_archive(other, cache).endswith("/other")


AUTOML = {f"d0/model.{suffix}": b"x" for suffix in ("index", "data-00000-of-00001", "meta")}
AUTOML["d0/._model.index"] = b"an attribute of a Mac"
SEVERAL = {"checkpoint": b'model_checkpoint_path: "ckpt-2"', "ckpt-1.index": b"", "ckpt-2.index": b""}


@pytest.mark.parametrize(
    ("data", "checkpoint"),
    [(pack(AUTOML), "/d0/model"), (gzip.decompress(pack(ZOO)), "/ckpt-0"), (pack(SEVERAL), "/ckpt-2")],
    ids=["automl", "no gzip", "the newest of several"],
)
def test_layouts_of_archives(server, cache, data, checkpoint):
    assert fetch_archive(server.serve(data), cache).endswith(checkpoint)


def test_a_hash_is_checked(server, cache):
    data = pack(ZOO)
    server.serve(data)
    digest = hashlib.sha256(data).hexdigest()
    assert f"SHA-256 is {digest}, allowed: {'0' * 64}" in refusal(server.address(sha256="0" * 64), cache)
    assert fetch_archive(server.address(sha256=digest), cache).endswith("/ckpt-0")


def test_a_leftover_of_a_killed_process_is_replaced(server, cache):
    address = server.serve(pack(ZOO))
    entry = Path(fetch_archive(address, cache)).parents[2]
    entry.rename(entry.with_name(f".{entry.name}"))  # as before the rename
    (entry.with_name(f".{entry.name}") / "archive").write_bytes(b"half")
    assert fetch_archive(address, cache).endswith("/ckpt-0")
    assert not entry.with_name(f".{entry.name}").exists()


def test_two_at_once_download_once(server, cache):
    address, data = server.serve(pack(ZOO)), pack(ZOO)
    both_asked = threading.Barrier(2)

    def slow(request: BaseHTTPRequestHandler) -> None:
        time.sleep(0.1)
        start_response(request)
        request.wfile.write(data)

    def fetch() -> str:
        both_asked.wait()
        return fetch_archive(address, cache)

    server.responses["/ssd.tar.gz"] = slow
    with ThreadPoolExecutor(2) as pool:
        first, second = (pool.submit(fetch) for _ in range(2))
        assert first.result() == second.result()
    assert server.requests == {"/ssd.tar.gz": 1}


# --- without a network ------------------------------------------------------------------------------------------------


def test_an_archive_that_was_copied_by_hand_is_used(server, cache):
    address = server.address()
    server.stop()
    message = refusal(address, cache)
    assert "Connection refused" in message
    by_hand = archive_by_hand(address, cache)
    assert f"copy the archive to {by_hand}, or" in message
    by_hand.write_bytes(pack(ZOO))
    assert fetch_archive(address, cache).endswith("/ckpt-0")
    assert by_hand.exists()
    wrong = server.address(sha256="0" * 64)
    by_hand.rename(archive_by_hand(wrong, cache))
    with pytest.raises(InputError, match=r"its SHA-256 is .*; it was copied to .*\.tar\.gz by hand"):
        fetch_archive(wrong, cache)


def test_a_user_without_a_home_folder_has_no_cache(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "relative")
    with pytest.raises(InputError, match=r"^train\.fine_tune_checkpoint: .*set XDG_CACHE_HOME"):
        fetch_checkpoint("https://host.invalid/ssd.tar.gz")


def test_a_cache_that_cannot_be_written_or_a_full_disk(server, cache, tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    address = server.serve(pack(ZOO))
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"the cache folder \S+ cannot be used \(Not a directory\).*XDG_CACHE_HOME"):
        fetch_archive(address, tmp_path / "file/cache")
    monkeypatch.setattr(downloaded_archive.shutil, "copyfileobj", full)
    with pytest.raises(InputError, match=r"cache folder \S+ cannot be used \(No space left on device\); free space"):
        fetch_archive(address, cache)


def test_a_setting_that_is_not_allowed_is_not_downloaded(server):
    with pytest.raises(InputError, match=r"checkpoint: got .*allowed: https://127.*, or http with #sha256"):
        fetch_checkpoint(f"{server.url}/ssd.tar.gz")


# --- faults of the network --------------------------------------------------------------------------------------------


def stall(request: BaseHTTPRequestHandler, ended: threading.Event) -> None:
    """Send headers and a byte, then nothing."""
    start_response(request, "1000")
    request.wfile.write(b"x")
    request.wfile.flush()
    ended.wait()


def send_nothing(request: BaseHTTPRequestHandler, ended: threading.Event) -> None:
    ended.wait()


def drip(request: BaseHTTPRequestHandler, ended: threading.Event) -> None:
    start_response(request)
    while not ended.wait(0.02):
        request.wfile.write(b"x")


def drip_headers(request: BaseHTTPRequestHandler, ended: threading.Event) -> None:
    request.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
    while not ended.wait(0.02):
        request.wfile.write(b"x")


@pytest.mark.parametrize(
    ("respond", "setting", "seconds", "message"),
    [
        (stall, "STALL_SECONDS", 0.1, "the server sent nothing for 0.1 s"),
        (send_nothing, "STALL_SECONDS", 0.1, "the server sent nothing for 0.1 s"),
        (drip, "MAX_SECONDS", 0.05, "took more than 0.05 s"),
        (drip_headers, "MAX_SECONDS", 0.1, "took more than 0.1 s"),
    ],
)
def test_a_server_that_is_too_slow(server, cache, monkeypatch, respond, setting, seconds, message):
    monkeypatch.setattr(downloaded_archive, setting, seconds)
    server.responses["/ssd.tar.gz"] = lambda request: respond(request, server.ended)
    assert message in refusal(server.address(), cache)


@pytest.mark.parametrize(
    ("respond", "message"),
    [
        (lambda request: request.send_error(404), "cannot be downloaded: the server responded 404 Not Found"),
        (lambda request: request.wfile.write(b"garbage\r\n\r\n"), "cannot be downloaded"),
        (lambda request: start_response(request, "1000"), "the connection ended after 0 of 1,000 bytes; try again"),
    ],
    ids=["missing", "not HTTP", "ends early"],
)
def test_a_response_that_is_no_archive(server, cache, respond, message):
    server.responses["/ssd.tar.gz"] = respond
    assert message in refusal(server.address(), cache)


def test_a_redirect_is_followed_if_a_hash_fixes_the_content(server, cache):
    data = pack(ZOO)
    server.serve(data, "/elsewhere")
    server.redirect("/elsewhere")
    assert fetch_archive(server.address(sha256=hashlib.sha256(data).hexdigest()), cache).endswith("/ckpt-0")


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/a.tar.gz", "http://127.0.0.1/a.tar.gz"])
def test_other_redirects_are_refused(server, cache, target):
    message = refusal(server.redirect(target), cache)
    assert target in message
    assert "redirect" in message.lower()


def test_an_endless_redirect(server, cache):
    server.redirect("/ssd.tar.gz")
    assert "the server responded 302" in refusal(server.address(sha256="0" * 64), cache)
    assert server.requests.total() < 20


# --- archives that are damaged or made to do harm ---------------------------------------------------------------------


def sized(name: str, kind: bytes, size: int) -> tarfile.TarInfo:
    member = special(name, kind)
    member.size = size
    return member


def headers(member: tarfile.TarInfo, number: int = 1, following: bytes = b"") -> bytes:
    """Return an archive that consists of copies of one header."""
    return gzip.compress(member.tobuf(tarfile.GNU_FORMAT) * number + following)


def flip_a_byte(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]


LINK, HEADER = "is a link or a special file", "it has a header of 4,294,967,296 bytes, allowed: 65,536"
TOO_LARGE = "unpacked, it has more than 1,048,576 bytes"
REFUSED = {
    "two checkpoints": (pack({"a/c-1.index": b"", "b/c-2.index": b""}), "contains 2 checkpoints (a/c-1, b/c-2)"),
    "no checkpoint": (pack({"s/variables/variables.index": b""}), "it contains no checkpoint"),
    "truncated": (pack(ZOO)[:-10], "it is damaged"),
    "a page": (b"<html>Not found</html>", "it is damaged or not a tar archive"),
    "a wrong byte": (flip_a_byte(pack({**ZOO, "x.index": os.urandom(5000)})), "it is damaged"),
    "symbolic link": (pack(ZOO, special("x.index", tarfile.SYMTYPE, "/etc/passwd")), f"'x.index' {LINK}"),
    "hard link": (pack(ZOO, special("x.index", tarfile.LNKTYPE, "ssd/checkpoint/ckpt-0.index")), f"'x.index' {LINK}"),
    "device": (pack(ZOO, special("device", tarfile.CHRTYPE)), f"'device' {LINK}"),
    "sparse file": (pack(ZOO, special("x.index", tarfile.GNUTYPE_SPARSE)), f"'x.index' {LINK}"),
    "a file twice": (
        pack(ZOO, tarfile.TarInfo("ssd/checkpoint/ckpt-0.index")),
        "it has two members 'ssd/checkpoint/ckpt-0.index'",
    ),
    "long name": (pack({f"{'a' * 300}.index": b""}), "has a name that is too long"),
    "a large file that is not written": (pack({"notes.txt": bytes(2**21), **ZOO}), TOO_LARGE),
    "files that are large together": (pack({f"{number}.index": bytes(2**18) for number in range(5)}), TOO_LARGE),
    "a size of terabytes": (headers(sized("ckpt-0.index", tarfile.REGTYPE, 2**42)), TOO_LARGE),
    "negative size": (headers(sized("c.index", tarfile.REGTYPE, -1024), 3), "cannot be used"),
    "negative size of a long name": (headers(sized("c.index", tarfile.GNUTYPE_LONGNAME, -1024), 3), "cannot be used"),
    "large long name": (headers(sized("name", tarfile.GNUTYPE_LONGNAME, 2**32), 1, bytes(2**20)), HEADER),
    "large PAX header": (headers(sized("name", tarfile.XHDTYPE, 2**32), 1, bytes(2**20)), HEADER),
    "large global header": (headers(sized("name", tarfile.XGLTYPE, 2**32), 1, bytes(2**20)), HEADER),
    "chain of long names": (headers(special("name", tarfile.GNUTYPE_LONGNAME), 3000), "cannot be used"),
    "chain of global headers": (headers(special("name", tarfile.XGLTYPE), 3000), "cannot be used"),
    "many members": (pack({}, *(special(str(n), tarfile.DIRTYPE) for n in range(40))), "it has more than 30 members"),
}


@pytest.mark.parametrize(("data", "message"), REFUSED.values(), ids=list(REFUSED))
def test_archives_that_are_refused(server, cache, monkeypatch, data, message):
    monkeypatch.setattr(downloaded_archive, "MAX_UNPACKED_BYTES", 2**20)
    monkeypatch.setattr(downloaded_archive, "MAX_FILES", 30)
    assert message in refusal(server.serve(data, length=-1), cache)


@pytest.mark.parametrize(
    "name", ["../evil.index", "/tmp/evil.index", "a/../../evil.index", "a\\..\\evil.index", "a/\x1b[2J.index", ".."]
)
def test_names_that_lead_out_of_the_folder(server, cache, name):
    message = refusal(server.serve(pack({**ZOO, name: b"evil"})), cache)
    assert "has an absolute path, '..' or a character that is not allowed" in message
    assert message.isprintable()
    assert not list(cache.parent.rglob("evil*"))


def test_headers_do_not_stay_in_memory(server, cache):
    files = {f"{number:04}.txt": b"" for number in range(200)}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
        for name in files:
            member = tarfile.TarInfo(name)
            member.pax_headers = {"comment": "x" * 60_000}
            tar.addfile(member)
    address = server.serve(buffer.getvalue())
    tracemalloc.start()
    refusal(address, cache)
    assert tracemalloc.get_traced_memory()[1] < 5_000_000  # of 12 million bytes of comments
    tracemalloc.stop()


@pytest.mark.parametrize("length", [None, -1])
def test_an_archive_that_is_too_large(server, cache, monkeypatch, length):
    monkeypatch.setattr(downloaded_archive, "MAX_ARCHIVE_BYTES", 1000)
    message = refusal(server.serve(os.urandom(300_000), length=length), cache)
    assert "bytes or more, allowed: 1,000" in message
