import re

import pytest
from command_line import detloom_command

from detloom.pipelines.local.supervise import hold_workspace


@pytest.fixture
def run_file(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("{name: cells, data: {path: ., split_by_ratio: {}}, workspace: ws, schedule: {cron: 0 3 * * *}}")
    return file


def test_units_are_printed_and_nothing_is_written(run_file):
    result = detloom_command("timer", run_file)
    assert result.exit_code == 0, result.output
    assert "# --- detloom-cells.service\n" in result.stdout
    assert "OnCalendar=*-*-* 03:00:00 UTC\n" in result.stdout
    assert [path.name for path in run_file.parent.iterdir()] == ["run.yaml"]


def test_units_are_written_and_the_workspace_is_made(run_file):
    folder = run_file.parent / "units"
    result = detloom_command("timer", run_file, "-o", folder)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in folder.iterdir()) == ["detloom-cells.service", "detloom-cells.timer"]
    assert (run_file.parent / "ws").is_dir()
    next_line = "Next: systemctl --user daemon-reload && systemctl --user enable --now detloom-cells.timer"
    assert result.stderr.splitlines()[-1] == next_line


@pytest.mark.reliability("concurrent runs", "metadata")
def test_second_run_in_a_workspace_exits_with_75(run_file):
    with hold_workspace(run_file.parent / "ws"):
        result = detloom_command("run", run_file)
    assert result.exception.exit_code == 75  # with which `main` exits
    assert re.match(r".*/ws: .*process \d+ ", str(result.exception))
