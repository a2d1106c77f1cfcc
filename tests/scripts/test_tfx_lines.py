"""The shell's and Python's modules on TFX lines, and what the image is built from."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from detloom.pipelines.tfx_line import TFX_LINES

ROOT = Path(__file__).parents[2]


def build_image(tmp_path, **settings):
    """Run image_build.sh with an engine that writes its arguments."""
    engine = tmp_path / "engine"
    engine.write_text('#!/bin/sh\necho "$@"\n')
    engine.chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "ENGINE": str(engine), **settings}
    command = ["bash", str(ROOT / "scripts/image_build.sh")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_first_line_is_the_default_of_the_dockerfile(tmp_path):
    arguments = build_image(tmp_path, TFX_LINE=TFX_LINES[0]).stdout
    defaults = re.findall(
        r"^ARG ((?:TFX_LINE|BASE_IMAGE|BEAM_IMAGE)=.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE
    )
    assert len(defaults) == 4  # the line in two stages
    assert all(f"--build-arg {default} " in arguments for default in defaults)


def test_the_older_line_is_built_on_its_own_python_and_beam(tmp_path):
    arguments = build_image(tmp_path, TFX_LINE="1.16", ACCELERATOR="tpu").stdout
    assert "BASE_IMAGE=docker.io/library/python:3.10-slim-bookworm" in arguments
    assert "BEAM_IMAGE=docker.io/apache/beam_python3.10_sdk:2.61.0" in arguments
    assert "LIBTPU_VERSION=1.10.1 --file Dockerfile.tpu --target pjrt" in arguments


def test_a_tpu_image_of_a_line_without_a_tpu_build_is_refused(tmp_path):
    done = build_image(tmp_path, TFX_LINE="1.21", ACCELERATOR="tpu")
    assert (done.returncode, done.stdout) == (2, "")
    assert "use TFX_LINE=1.16" in done.stderr


@pytest.mark.parametrize("script", ["find_python.sh", "image_build.sh"])
def test_an_unknown_line_is_refused(script):
    command = ["bash", str(ROOT / "scripts" / script)]
    done = subprocess.run(command, env={**os.environ, "TFX_LINE": "1.20"}, capture_output=True, text=True, check=False)
    assert done.returncode
    assert f"allowed: {', '.join(TFX_LINES)}" in done.stderr
