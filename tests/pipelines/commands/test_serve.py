import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from functools import partial
from pathlib import Path

import pytest
from command_line import detloom_command

import detloom

serve = functools.partial(detloom_command, "serve")

ROOT = Path(detloom.__file__).parents[1]


SERVE = [sys.executable, "-u", "-c", "from detloom.pipelines.cli import main; main()", "serve"]


@pytest.mark.slow
def test_serve_prints_its_urls_and_stops_cleanly_at_ctrl_c(tiny_model_dir):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [*SERVE, str(tiny_model_dir), "--port", "0", "--name", "cells"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # shells ignore it in the background
    ) as process:
        try:
            lines = [process.stdout.readline() for _ in range(3)]
            url = re.match(r"(http://127\.0\.0\.1:\d+)/ ", lines[0])[1]
            with urllib.request.urlopen(f"{url}/v1/models/cells", timeout=60) as response:
                assert json.load(response)["model_version_status"][0]["state"] == "AVAILABLE"
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()  # does nothing if the process has ended
    assert process.returncode == 0
    assert "Not a production server." in lines[2]
    assert err.strip().splitlines()[-1] == "Stopped."
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.reliability("kill", "serve")
def test_a_killed_server_leaves_the_model_unchanged_and_its_port_can_be_used_again(tiny_model_dir):
    def read_model():
        return {path: path.read_bytes() for path in tiny_model_dir.rglob("*") if path.is_file()}

    before, port = read_model(), "0"
    for _ in range(2):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [*SERVE, str(tiny_model_dir), "--port", port]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            try:
                port = re.match(r"http://127\.0\.0\.1:(\d+)/ ", process.stdout.readline())[1]
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models/detector", timeout=60) as response:
                    assert response.status == 200
            finally:
                process.kill()
    assert read_model() == before


@pytest.mark.reliability("concurrent runs", "serve")
def test_port_in_use_is_refused(tiny_model_dir):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = serve(tiny_model_dir, "--port", port)
    assert f"--host 127.0.0.1 --port {port}: " in str(result.exception)
    assert "(Address already in use)" in str(result.exception)


def test_invalid_model_name_is_refused(tmp_path):
    for name in ("a/b", "..", ""):
        assert str(serve(tmp_path, "--name", name).exception).startswith(f"--name: got {name!r}, allowed: ")


def test_folder_without_model_is_refused(tmp_path):
    assert "saved_model.pb" in str(serve(tmp_path).exception)
