import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from detloom.components.fingerprints import describe_code
from detloom.pipelines.cli import cli
from detloom.pipelines.doctor import check_image
from detloom.pipelines.doctor.check_result import CheckResult
from detloom.schemas.errors import InputError

MODULE = "detloom.pipelines.container.time_limit"
OURS, OTHER = describe_code(MODULE), f"{MODULE}=fedcba9876543210"


def write_job(folder: Path, code: str) -> Path:
    file = folder / "job.json"
    file.write_text(json.dumps({"command": ["python", "--code", code]}))
    return file


@pytest.fixture(autouse=True)
def _no_slow_checks(monkeypatch):
    for name in ("check_tensorflow", "check_packages"):
        monkeypatch.setattr(check_image, name, lambda: iter([CheckResult(name="x", status="ok", detail="")]))


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """Install a fake podman that records arguments and input, and exits with the code in the file `code`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "podman"
    script.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" > {folder}/arguments\ncat > {folder}/stdin\nexit "$(cat {folder}/code)"\n'
    )
    script.chmod(0o755)
    (folder / "code").write_text("0")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    return folder


def call(*arguments: str, text: str | None = None):
    return CliRunner().invoke(cli, ["image-check", *arguments], input=text)


def test_a_job_of_the_same_code_passes(tmp_path):
    result = call("--job", str(write_job(tmp_path, OURS)))
    assert result.exit_code == 0, result.output


def test_a_job_of_other_code_fails_and_is_named(tmp_path):
    result = call("--job", str(write_job(tmp_path, OTHER)))
    assert result.exit_code == 1
    assert f"expected: {OTHER}" in result.output


def test_the_job_can_come_from_standard_input_and_the_result_as_json(tmp_path):
    result = call("--job", "-", "--json", text=write_job(tmp_path, OTHER).read_text())
    assert result.exit_code == 1
    (code,) = (each for each in json.loads(result.output) if each["name"] == "code")
    assert (code["status"], code["expected"]) == ("error", OTHER)


def test_the_command_in_the_image_gets_the_job_on_standard_input(tmp_path, engine):
    job = write_job(tmp_path, OTHER)
    result = call("--image", "localhost/detloom:1", "--job", str(job), "--json", "--run-option=--gpus=all")
    assert result.exit_code == 0, result.output
    assert (engine / "arguments").read_text().split("\n")[:-1] == [
        *("run", "--rm", "--interactive", "--gpus=all", "--entrypoint", "detloom", "localhost/detloom:1"),
        *("image-check", "--job", "-", "--json"),
    ]
    assert (engine / "stdin").read_bytes() == job.read_bytes()


def test_the_exit_code_of_the_check_in_the_image_is_returned(engine):
    (engine / "code").write_text("1")
    assert call("--image", "localhost/detloom:1").exit_code == 1
    assert (engine / "arguments").read_text().split()[-1] == "image-check"


def test_a_container_that_does_not_start_is_reported(engine):
    (engine / "code").write_text("125")
    with pytest.raises(InputError, match=r"localhost/none: podman could not run detloom in it \(exit code 125"):
        CliRunner().invoke(cli, ["image-check", "--image", "localhost/none"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--image", "-v/:/host"), "--image: got '-v/:/host'"),
        (("--run-option", "--gpus=all"), "--run-option: .*--image"),
        (("--job", "nowhere.json"), "nowhere.json: cannot be read"),
        (("--job", "."), r"--job \.: cannot be read"),
    ],
)
def test_invalid_arguments_are_refused(engine, arguments, message):
    with pytest.raises(InputError, match=message):
        CliRunner().invoke(cli, ["image-check", *arguments], catch_exceptions=False)


def test_an_invalid_job_is_refused_before_a_container_starts(engine, tmp_path):
    (tmp_path / "run.yaml").write_text("name: demo\n")
    with pytest.raises(InputError, match=r"run.yaml: .*--code"):
        CliRunner().invoke(
            cli, ["image-check", "--image", "x", "--job", str(tmp_path / "run.yaml")], catch_exceptions=False
        )
    assert not (engine / "arguments").exists()


def test_a_missing_engine_is_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="podman or docker"):
        CliRunner().invoke(cli, ["image-check", "--image", "x"], catch_exceptions=False)
