import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import detloom
from detloom.pipelines.cli import cli

ROOT = Path(detloom.__file__).parents[1]


def run_detloom(*arguments, cwd):
    command = [sys.executable, "-c", "from detloom.pipelines.cli import main; main()", *arguments]
    import os

    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False)


@pytest.mark.parametrize("command", [[], ["run"], ["demo"], ["predict"], ["train"], ["evaluate"]])
def test_every_command_has_help(command):
    result = CliRunner().invoke(cli, [*command, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_a_missing_run_file_is_one_sentence(tmp_path):
    result = run_detloom("run", "none.yaml", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.strip().splitlines()[-1] == "error: none.yaml: no such file."
    assert "Traceback" not in result.stderr


def test_a_model_that_is_none_is_one_sentence(tmp_path):
    (tmp_path / "picture.png").write_bytes(b"x")
    result = run_detloom("predict", "picture.png", "--model", "nowhere", cwd=tmp_path)
    assert result.returncode == 1
    assert "nowhere" in result.stderr.strip().splitlines()[-1]
    assert "Traceback" not in result.stderr
