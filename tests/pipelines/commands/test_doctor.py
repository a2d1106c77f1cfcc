import json

import pytest
from click.testing import CliRunner

from detloom.pipelines.commands.doctor import doctor
from detloom.pipelines.doctor import check_run
from detloom.pipelines.doctor.check_result import CheckResult


@pytest.mark.parametrize(("status", "exit_code"), [("ok", 0), ("warning", 0), ("error", 1)])
def test_an_error_is_the_exit_code(monkeypatch, status, exit_code):
    results = (CheckResult(name="memory", status=status, detail="2 GB"),)
    monkeypatch.setattr(check_run, "check_machine_and_run", lambda run: results)
    text = CliRunner().invoke(doctor)
    assert (text.exit_code, "memory  2 GB" in text.stdout) == (exit_code, True)
    assert ("detloom demo" in text.stdout) == (exit_code == 0)
    as_json = CliRunner().invoke(doctor, ["--json"])
    assert (as_json.exit_code, json.loads(as_json.stdout)[0]["status"]) == (exit_code, status)
