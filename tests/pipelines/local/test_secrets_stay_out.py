"""Plant secrets where users keep them, and search for them, byte by byte, in all output of the commands."""

import base64
import gzip
import http.server
import io
import json
import math
import os
import subprocess
import sys
import threading
import urllib.parse
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import detloom
from detloom.pipelines.cli import main
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.read_run_file import read_run_file

ROOT = Path(detloom.__file__).parents[1]
# Each secret has characters that encodings change.
HOOK_TOKEN, HOOK_HEADER = "T0/B0/hook+Q7x=zzk2", "hdr+Z9/kq=Wm4t"
SMTP_USER, SMTP_PASSWORD = "usr+p3/Lw=Nv8c", "pwd+J5/sr=Yb1h"
KFP_TOKEN, CLOUD_KEY, DATA_USER = "kfp+D2/vm=Xg6e", "aws+R4/tn=Cj9f", "dta+K8/hb=Fu3w"
SECRETS = (HOOK_TOKEN, HOOK_HEADER, SMTP_USER, SMTP_PASSWORD, KFP_TOKEN, CLOUD_KEY, DATA_USER)
SECTIONS = """
notifications:
  events: [failed, refused, pushed, skipped]
  timeout_seconds: 5
  webhook: {url: "env:HOOK_URL", authorization: "env:HOOK_HEADER"}
  email:
    {host: 127.0.0.1, port: 1, sender: a@example.org, recipients: [b@example.org], user: "env:SMTP_USER",
     password: "env:SMTP_PASSWORD"}
schedule: {cron: "0 3 * * *"}
"""
CLUSTERS = """
kubeflow: {host: "HOST", token: "env:KFP_TOKEN", image: "registry.example.org/detloom:1",
  pipeline_root: "gs://bucket/kfp", volumes: [{claim: data, mount_path: /gcs/bucket}]}
vertex: {project: my-project, region: us-central1, image: "registry.example.org/detloom:1",
  pipeline_root: "gs://bucket/vertex"}
push_to: gs://bucket/models
"""


JOB_FILES = {"kubeflow": "job.yaml", "vertex": "job.json"}


def forms_of(secret: str) -> Iterator[bytes]:
    """Return a secret as plain text and encoded for URLs, JSON, base64 at any offset, hex and UTF-16."""
    raw = secret.encode()
    yield raw
    yield urllib.parse.quote(secret, safe="").encode()
    yield urllib.parse.quote(secret).encode()
    yield json.dumps(secret)[1:-1].replace("/", "\\/").encode()
    yield raw.hex().encode()
    yield secret.encode("utf-16-le")
    for offset in range(3):  # base64 encodes three bytes in four letters
        for alphabet in (base64.b64encode, base64.urlsafe_b64encode):
            whole = alphabet(b"\0" * offset + raw)
            yield whole[math.ceil(offset * 8 / 6) : (offset + len(raw)) * 8 // 6]


FORMS = {form: secret for secret in SECRETS for form in forms_of(secret)}


def layers_of(data: bytes) -> Iterator[bytes]:
    """Return the content and the members of archives in it."""
    yield data
    for unpack in (gzip.decompress, zlib.decompress):
        try:
            yield unpack(data)
        except (OSError, EOFError, zlib.error):
            continue
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            yield from (archive.read(name) for name in archive.namelist())


def found_in(data: bytes) -> set[str]:
    return {secret for layer in layers_of(data) for form, secret in FORMS.items() if form in layer}


def found_under(folder: Path) -> dict[str, set[str]]:
    """Return the secrets in the names and contents of all files below a folder."""
    found = {}
    for path in folder.rglob("*"):
        inside = found_in(str(path).encode()) | (found_in(path.read_bytes()) if path.is_file() else set())
        if inside:
            found[str(path.relative_to(folder))] = inside
    return found


class Echo(http.server.BaseHTTPRequestHandler):
    """A handler that refuses every request, returns its content and stores it."""

    asked: list[tuple[str, str, bytes]] = []
    status = 401

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.asked.append((self.path, str(self.headers), body))
        answer = f"{self.path} {self.headers}".encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST

    def log_message(self, *_):
        pass


@pytest.fixture
def echo() -> Iterator[str]:
    """Return the address of a server that returns what it receives; `Echo.asked` stores it."""
    Echo.asked.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def environment(tmp_path, echo) -> dict[str, str]:
    """Set environment and files with secrets; temporary files go to a folder that is searched."""
    (tmp_path / "temporary").mkdir()
    return {
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path / "temporary"),
        "HOOK_URL": f"{echo}/services/{HOOK_TOKEN}",
        "HOOK_HEADER": f"Bearer {HOOK_HEADER}",
        "SMTP_USER": SMTP_USER,
        "SMTP_PASSWORD": SMTP_PASSWORD,
        "KFP_TOKEN": KFP_TOKEN,
        "AWS_SECRET_ACCESS_KEY": CLOUD_KEY,
        **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1"),
    }


@pytest.fixture
def call(environment, monkeypatch, tmp_path, capfd):
    """Return a function that runs a command in this process and checks that its output contains no secret."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["detloom", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as caught:
            main()
        printed = "".join(capfd.readouterr())
        assert found_in(printed.encode()) == set(), printed[-3000:]
        return int(caught.value.code or 0), printed

    return call


def run_alone(environment: dict[str, str], *arguments: object) -> tuple[int, str]:
    """Run `detloom run` in a subprocess; otherwise as `call`."""
    command = [sys.executable, "-m", "detloom.pipelines.cli", "run", *map(str, arguments)]
    settings = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(command, capture_output=True, env=settings, cwd=environment["HOME"], check=False)
    printed = (done.stdout + done.stderr).decode(errors="replace")
    assert found_in(done.stdout + done.stderr) == set(), printed[-3000:]
    return done.returncode, printed


@pytest.mark.nightly
@pytest.mark.timeout(1800)  # three runs
def test_a_local_run_uses_secrets_and_leaves_none(environment, small_run, tmp_path, monkeypatch):
    monkeypatch.setattr(Echo, "status", 200)
    small_run.write_text(small_run.read_text() + SECTIONS)
    code, printed = run_alone(environment, small_run, "--verbose")
    assert code == 0, printed[-3000:]
    assert "notifications.webhook: sent 'small: version" in printed
    assert "was not sent: no connection (ConnectionRefusedError), 3 tries." in printed
    (path, headers, body), *_ = Echo.asked
    assert path == f"/services/{HOOK_TOKEN}"
    assert f"Bearer {HOOK_HEADER}" in headers
    assert json.loads(body)["event"] == "pushed"
    assert found_in(body) == set()

    Echo.asked.clear()
    code, printed = run_alone(
        environment, small_run
    )  # nothing new: the webhook was notified, the mail was not sent yet
    assert code == 0, printed[-3000:]
    assert Echo.asked == []
    assert "notifications.email: 'small: version" in printed

    monkeypatch.setattr(Echo, "status", 401)  # the server returns path and header
    (small_run.parent / "data" / "annotations" / "train.json").write_text('{"images": [}')
    code, printed = run_alone(environment, small_run, "--verbose")
    assert code == 1
    assert "'small failed in DetectionExampleGen' was not sent: the server responded with 401." in printed
    assert json.loads(Echo.asked[-1][2])["reason"].startswith("DetectionExampleGen failed: ")
    assert b"env:HOOK_URL" in (tmp_path / "workspace" / "metadata.sqlite").read_bytes()  # only the reference is stored
    assert found_under(tmp_path) == {}


@pytest.mark.slow
def test_jobs_manifests_and_timers_contain_no_secret(call, small_run, tmp_path, echo):
    text = (small_run.read_text() + SECTIONS + CLUSTERS).replace("HOST", echo)
    small_run.write_text(text.replace(f"path: {small_run.parent / 'data'}", "path: /gcs/bucket/data"))
    for place, name in JOB_FILES.items():
        code, printed = call("compile", small_run, "--runner", place, "-o", tmp_path / name)
        assert code == 0, printed
        job = (tmp_path / name).read_text()
        assert "env:HOOK_URL" in job
        assert "FailureNotifier" in job
        assert "KFP_TOKEN" not in job  # not even the reference, because no container needs it
    for command in ("submit", "status"):
        code, printed = call(command, small_run, "--runner", "kubeflow")
        assert code == 1, printed
    assert any(KFP_TOKEN in headers for _, headers, _ in Echo.asked)
    local = small_run.with_name("local.yaml")
    local.write_text(text.replace("push_to: gs://bucket/models", ""))
    code, printed = call("timer", local, "-o", tmp_path / "units")
    assert code == 0, printed
    for command in ("check", "show"):
        call("config", command, local)
    assert found_under(tmp_path) == {}


@pytest.mark.parametrize("value", ["${DATA_ADDRESS}", "${DATA_ADDRESS}/span-{SPAN}", "gs://b/x?sig=${KEY}"])
@pytest.mark.parametrize(
    ("place", "key"),
    [
        ("local", "workspace"),
        *((place, key) for place in ("local", "kubeflow", "vertex") for key in ("data.path", "push_to", "records")),
    ],
)
def test_an_address_with_a_password_is_refused_without_showing_it(tmp_path, monkeypatch, place, key, value):
    monkeypatch.setenv("DATA_ADDRESS", f"s3://key:{DATA_USER}@bucket/data")
    monkeypatch.setenv("KEY", CLOUD_KEY)
    places = {"data.path": "gs://bucket/data", "push_to": "gs://bucket/models", "workspace": str(tmp_path)}
    if place == "local":
        places["data.path"] = str(tmp_path)
    places[key] = value
    run_file = tmp_path / "run.yaml"
    run_file.write_text(f"""
name: small
data: {{format: images, path: "{places["data.path"]}", split_by_ratio: {{}}}}
train: {{batch_size: 2, num_steps: 3}}
push_to: "{places["push_to"]}"
workspace: "{places["workspace"]}"
retrain: {{min_new_images: 1, records: "{places.get("records", "")}"}}
kubeflow: {{image: i}}
vertex: {{project: my-project, region: us-central1, image: i, pipeline_root: "gs://bucket/x"}}
""")
    with pytest.raises(InputError, match=rf"{key}: got .*, allowed") as caught:
        read_run_file(run_file, place=place)
    assert found_in(str(caught.value).encode()) == set()


def test_a_secret_in_beam_arguments_is_refused_without_showing_it(tmp_path):
    run_file = tmp_path / "run.yaml"
    run_file.write_text(f"""
name: small
data: {{format: images, path: {tmp_path}, split_by_ratio: {{}}}}
train: {{batch_size: 2, num_steps: 3}}
beam_args: ["--s3_secret_access_key={CLOUD_KEY}"]
""")
    with pytest.raises(InputError, match=r"beam_args: got --s3_secret_access_key, allowed") as caught:
        read_run_file(run_file)
    assert found_in(str(caught.value).encode()) == set()
