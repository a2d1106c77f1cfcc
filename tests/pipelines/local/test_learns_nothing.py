"""A model that learns nothing is not blessed by the built-in floor, without any gate of the user."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from detloom.components.pusher.push import list_versions
from detloom.pipelines.commands.run import run_command
from detloom.pipelines.local.summary import read_latest_run
from detloom.schemas.run_file.read_run_file import read_run_file


@pytest.fixture
def messages(monkeypatch):
    """Run a webhook at the address in HOOK; return the list of its messages."""
    found = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            found.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HOOK", f"http://127.0.0.1:{server.server_port}/")
        yield found
        server.shutdown()


@pytest.mark.nightly
def test_a_model_that_learns_nothing_is_refused_with_exit_code_0_and_a_message(small_run, messages):
    text = small_run.read_text().replace("learning_rate: 0.001", "learning_rate: 1.0e-12")
    gates = next(line for line in text.splitlines() if line.startswith("gates:"))
    small_run.write_text(text.replace(gates, 'notifications: {webhook: {url: "env:HOOK"}}'))
    result = CliRunner().invoke(run_command, [str(small_run)])
    assert result.exit_code == 0, result.output
    assert "NOT BLESSED" in result.output

    settings = read_run_file(small_run)
    nodes = read_latest_run(Path(settings.workspace) / "metadata.sqlite")
    decision = json.loads((nodes["DetectionEvaluator"].folder("evaluation") / "decision.json").read_text())
    assert decision["blessed"] is False
    (failed,) = [gate["name"] for gate in decision["gates"] if gate["verdict"] == "failed"]
    assert "a detector that ignores the image" in failed
    assert list_versions(settings.push_to) == []
    (message,) = messages
    assert message["event"] == "refused"
    assert decision["reason"] in message["text"]
