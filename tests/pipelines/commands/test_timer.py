import re

import pytest
from click.testing import CliRunner

from detloom.pipelines.cli import cli
from detloom.pipelines.local.supervise import hold_workspace

RUN = """
name: cells
data: {path: ., split_by_ratio: {}}
workspace: ws
schedule: {cron: 0 3 * * *}
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
    assert [path.name for path in run_file.parent.iterdir()] == ["run.yaml"]


def test_units_are_written_and_the_workspace_is_made(run_file):
    folder = run_file.parent / "units"
    result = CliRunner().invoke(cli, ["timer", str(run_file), "-o", str(folder)])
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in folder.iterdir()) == ["detloom-cells.service", "detloom-cells.timer"]
    assert (run_file.parent / "ws").is_dir()
    next_line = "Next: systemctl --user daemon-reload && systemctl --user enable --now detloom-cells.timer"
    assert result.stderr.splitlines()[-1] == next_line


@pytest.mark.reliability("concurrent runs", "metadata")
def test_second_run_in_a_workspace_exits_with_75(run_file):
    with hold_workspace(run_file.parent / "ws"):
        result = CliRunner().invoke(cli, ["run", str(run_file)])
    assert result.exception.exit_code == 75  # with which `main` exits
    assert re.match(r".*/ws: .*process \d+ ", str(result.exception))
