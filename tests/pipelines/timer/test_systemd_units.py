import shutil
import subprocess
import sys

import pytest

from detloom.pipelines.timer.systemd_units import format_units
from detloom.schemas.errors import InputError


def test_a_service_and_a_timer(make_scheduled):
    units = format_units(make_scheduled(catch_up=True, timezone="Europe/Berlin"))
    assert list(units) == ["detloom-cells.service", "detloom-cells.timer"]
    assert units["detloom-cells.service"].splitlines()[1:] == [
        "[Unit]",
        "Description=detloom: pipeline cells",
        "",
        "[Service]",
        "Type=oneshot",
        "WorkingDirectory=/",
        "Environment=PYTHONUNBUFFERED=1",
        "EnvironmentFile=-/runs/cells/schedule.env",
        'ExecStart="/usr/bin/python3" "-m" "detloom.pipelines.cli" "run" "/data/run.yaml"',
        "SuccessExitStatus=75",
        "StandardOutput=append:/runs/cells/schedule.log",
        "StandardError=append:/runs/cells/schedule.log",
        "KillMode=mixed",
        "TimeoutStopSec=600",
    ]
    assert units["detloom-cells.timer"].splitlines()[4:] == [
        "[Timer]",
        "OnCalendar=*-*-* 03:00:00 Europe/Berlin",
        "AccuracySec=1s",
        "Persistent=true",
        "",
        "[Install]",
        "WantedBy=timers.target",
    ]


def test_what_is_missed_stays_missed_without_catch_up(make_scheduled):
    assert "\nPersistent=false\n" in format_units(make_scheduled())["detloom-cells.timer"]


def test_what_means_something_to_systemd_is_escaped(make_scheduled):
    words = ("/opt/my python/bin/python", "run", 'a "b" $HOME %h \\n', "it's; this")
    service = format_units(make_scheduled(*words, workspace="/runs/100% my cells"))["detloom-cells.service"]
    assert r'ExecStart="/opt/my python/bin/python" "run" "a \"b\" $$HOME %%h \\n" "it' in service
    assert '"it\'s; this"\n' in service
    assert "EnvironmentFile=-/runs/100%% my cells/schedule.env\n" in service
    assert "append:/runs/100%% my cells/schedule.log\n" in service


@pytest.mark.parametrize("workspace", ["/runs/[1]", "/runs/a*", "/runs/a\\b"])
def test_a_workspace_that_a_unit_would_read_as_a_pattern_is_refused(make_scheduled, workspace):
    with pytest.raises(InputError, match="cannot stand in a unit"):
        format_units(make_scheduled(workspace=workspace))


def test_a_program_with_a_dollar_in_its_path_is_refused(make_scheduled):
    with pytest.raises(InputError, match="systemd cannot start a program"):
        format_units(make_scheduled("/opt/$x/python"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("workspace", ["/runs/cells", "/runs/100% my $cells 'x' \"y\""])
def test_systemd_understands_the_units(make_scheduled, tmp_path, workspace):
    words = (sys.executable, "-m", "detloom.pipelines.cli", 'a "b" $HOME %h', "c\\d")
    for name, text in format_units(make_scheduled(*words, workspace=workspace, cron="*/5 1,2 * 1-3 mon")).items():
        (tmp_path / name).write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "detloom-cells.timer")]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    said = [line for line in checked.stderr.splitlines() if "detloom" in line]
    assert said == []
