import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from detloom.components.fingerprints import describe_code
from detloom.pipelines.cli import cli
from detloom.pipelines.doctor import check_image
from detloom.pipelines.doctor.check_result import CheckResult
from detloom.pipelines.tfx_line import tfx_line
from detloom.schemas.errors import InputError

MODULE = "detloom.pipelines.container.time_limit"
OURS, OTHER = describe_code(MODULE), f"{MODULE}=fedcba9876543210"


def write_job(folder: Path, code: str, line: str = "") -> Path:
    file = folder / "job.json"
    file.write_text(json.dumps({"command": ["python", f"--tfx={line or tfx_line()}", "--code", code]}))
    return file


@pytest.fixture(autouse=True)
def _no_slow_checks(monkeypatch):
    for name in ("check_tensorflow", "check_packages"):
        monkeypatch.setattr(check_image, name, lambda: iter([CheckResult(name="x", status="ok", detail="")]))
    monkeypatch.setattr(check_image, "package_fingerprint", lambda: "0" * 16)  # it reads all modules


def call(*arguments: str, text: str | None = None):
    return CliRunner().invoke(cli, ["image-check", *arguments], input=text)


def test_a_job_of_the_same_code_passes_and_one_of_other_code_fails(tmp_path):
    result = call("--job", str(write_job(tmp_path, OURS)))
    assert result.exit_code == 0, result.output
    result = call("--job", str(write_job(tmp_path, OTHER)))
    assert result.exit_code == 1
    assert f"expected: {OTHER}" in result.output
    result = call("--job", "-", "--json", text=(tmp_path / "job.json").read_text())
    assert result.exit_code == 1
    (code,) = (each for each in json.loads(result.output) if each["name"] == "code")
    assert (code["status"], code["expected"]) == ("error", OTHER)


def test_a_job_of_another_tfx_line_fails(tmp_path):
    result = call("--job", str(write_job(tmp_path, OURS, line="1.99")))
    assert result.exit_code == 1
    assert "TFX_LINE=1.99" in result.output


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ("nowhere.json", "nowhere.json: cannot be read"),
        (".", r"--job \.: cannot be read"),
        ("run.yaml", r"run.yaml: .*--code"),
    ],
)
def test_an_invalid_job_is_refused(job, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text("name: demo\n")
    with pytest.raises(InputError, match=message):
        CliRunner().invoke(cli, ["image-check", "--job", job], catch_exceptions=False)
