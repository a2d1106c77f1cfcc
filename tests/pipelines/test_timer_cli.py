import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import detloom
from detloom.pipelines.cli import cli
from detloom.pipelines.run_lock import hold_workspace

ROOT = Path(detloom.__file__).parents[1]
RUN = """
name: cells
data: {path: ., split_by_ratio: {}}
workspace: ws
schedule: {cron: 0 3 * * *}
notifications: {webhook: {url: "env:HOOK"}}
"""


@pytest.fixture
def run_file(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(RUN)
    return file


def test_units_are_printed_and_nothing_is_written(run_file):
    result = CliRunner().invoke(cli, ["timer", str(run_file)])
    assert result.exit_code == 0, result.output
    assert "# --- detloom-cells.service\n" in result.stdout
    assert "OnCalendar=*-*-* 03:00:00 UTC\n" in result.stdout
    assert re.search(r"next runs: 20\d\d-\d\d-\d\d 03:00\+00:00, ", result.stderr)
    assert [path.name for path in run_file.parent.iterdir()] == ["run.yaml"]


def test_files_are_written_with_an_environment_for_the_owners_eyes_alone(run_file):
    folder, environment = run_file.parent / "units", run_file.parent / "ws" / "schedule.env"
    for _ in range(2):
        result = CliRunner().invoke(cli, ["timer", str(run_file), "-o", str(folder)])
        assert result.exit_code == 0, result.output
    assert sorted(path.name for path in folder.iterdir()) == ["detloom-cells.service", "detloom-cells.timer"]
    assert stat.S_IMODE(environment.stat().st_mode) == 0o600
    assert environment.read_text() == "# Environment of scheduled runs: NAME='value'\n#HOOK=''\n"
    environment.write_text("HOOK='secret'\n")
    result = CliRunner().invoke(cli, ["timer", str(run_file), "-o", str(folder)])
    assert environment.read_text() == "HOOK='secret'\n"
    assert "secret" not in "".join(path.read_text() for path in folder.iterdir()) + result.output


def test_a_line_for_cron(run_file):
    folder = run_file.parent / "cron"
    utc = run_file.parent / "utc.yaml"
    utc.write_text(RUN)
    result = CliRunner().invoke(cli, ["timer", str(utc), "--kind", "cron", "-o", str(folder)])
    if result.exit_code:  # of a machine with another time zone
        assert "which is not the time zone of this machine" in str(result.exception)
    else:
        assert (folder / "detloom-cells.crontab").read_text().splitlines()[1].startswith("0 3 * * * cd / && ")


def test_a_run_that_finds_another_one_ends_with_75_and_one_sentence(run_file):
    with hold_workspace(run_file.parent / "ws"):
        ran = subprocess.run(
            [sys.executable, "-m", "detloom.pipelines.cli", "run", str(run_file)],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
    assert ran.returncode == 75
    assert re.fullmatch(r"error: .*another run is under way there \(.*\); nothing was run\..*\n", ran.stderr)
