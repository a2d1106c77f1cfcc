import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

import detloom
from detloom.pipelines.cli import cli

ROOT = Path(detloom.__file__).parents[1]
_SPEC = importlib.util.spec_from_file_location(
    "tiny_detector", Path(__file__).parents[1] / "components" / "evaluator" / "tiny_detector.py"
)
tiny_detector = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(tiny_detector)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return tiny_detector.write_tiny_detector(tmp_path_factory.mktemp("model") / "export")


def serve(*arguments):
    return CliRunner().invoke(cli, ["serve", *map(str, arguments)])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_is_and_ends_cleanly_when_asked_to(model_dir, number):
    command = [sys.executable, "-u", "-c", "from detloom.pipelines.cli import main; main()", "serve", str(model_dir)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [*command, "--port", "0", "--name", "cells"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            said = [process.stdout.readline() for _ in range(3)]
            url = re.match(r"(http://127\.0\.0\.1:\d+)/ is the page", said[0])[1]
            with urllib.request.urlopen(f"{url}/v1/models/cells", timeout=60) as response:
                assert json.load(response)["model_version_status"][0]["state"] == "AVAILABLE"
            process.send_signal(number)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()  # a failure does not wait for it
    assert process.returncode == 0
    assert "No production server." in said[2]
    assert err.strip().splitlines()[-1] == "Ended."
    assert "Traceback" not in err


def test_a_port_that_is_taken_is_one_sentence(model_dir):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = serve(model_dir, "--port", port)
    message = f"--host 127.0.0.1 --port {port}: cannot listen there (Address already in use); --port 0 picks one."
    assert str(result.exception) == message


def test_a_name_that_fits_no_address_is_refused(tmp_path):
    for name in ("a/b", "..", ""):
        assert str(serve(tmp_path, "--name", name).exception).startswith(f"--name: got {name!r}, allowed: a letter or")


def test_a_folder_without_model_is_refused(tmp_path):
    assert "holds neither saved_model.pb nor a numbered version" in str(serve(tmp_path).exception)
