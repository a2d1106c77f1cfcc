import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from datetime import datetime, timezone
from zoneinfo import ZoneInfo

import pytest

from detloom.pipelines.timer import format_units, on_calendar
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.read_run_file import read_run_file
from detloom.schemas.run_file.schedule import parse_cron

TABLE = [
    ("0 3 * * *", "*-*-* 03:00:00 UTC"),
    ("* * * * *", "*-*-* *:*:00 UTC"),
    ("*/15 * * * *", "*-*-* *:00,15,30,45:00 UTC"),
    ("5,35 8-18/5 * * *", "*-*-* 08,13,18:05,35:00 UTC"),
    ("0 3 * * 7", "Sun *-*-* 03:00:00 UTC"),
    ("0 3 * * sun,MON", "Mon,Sun *-*-* 03:00:00 UTC"),
    ("0 3 * * 1-5", "Mon,Tue,Wed,Thu,Fri *-*-* 03:00:00 UTC"),
    ("0 3 31 1,jul *", "*-01,07-31 03:00:00 UTC"),
    ("0 3 29 2 *", "*-02-29 03:00:00 UTC"),
    ("0 3 1-31 * *", "*-*-* 03:00:00 UTC"),
    ("0 3 */10 * 1", "Mon *-*-01,11,21,31 03:00:00 UTC"),  # with a star cron requires both as well
    ("0 3 1 * */2", "Tue,Thu,Sat,Sun *-*-01 03:00:00 UTC"),
    ("0 3 13 * 0-6", "*-*-* 03:00:00 UTC"),  # without a star either is enough, and 0-6 is every day
    ("0 3 1-31 * 5", "*-*-* 03:00:00 UTC"),
]


@pytest.fixture
def make_run(tmp_path):
    """Return a function that writes a run file with a schedule and returns it as it is read, and its path."""

    def make(schedule="cron: 0 3 * * *", folder="my cells"):
        file = tmp_path / folder / "run.yaml"
        file.parent.mkdir()
        section = f"schedule: {{{schedule}}}" if schedule else ""
        file.write_text(f"name: cells\ndata: {{path: ., split_by_ratio: {{}}}}\nworkspace: ws\n{section}\n")
        return read_run_file(file), file

    return make


@pytest.mark.parametrize(("cron", "expected"), TABLE)
def test_cron_expression_is_converted(cron, expected):
    assert on_calendar(parse_cron(cron), "UTC") == expected


@pytest.mark.parametrize("cron", ["0 3 13 * 5", "0 3 1-30 * 0-5"])
def test_days_of_month_or_week_are_refused(cron):
    with pytest.raises(InputError, match=r"schedule\.cron: "):
        on_calendar(parse_cron(cron), "UTC")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize(
    "start", ["2026-03-27 01:30:00", "2026-10-24 01:30:00"]
)  # clocks change on 29 March, 25 October
def test_systemd_computes_the_times_of_cron(zone, start):
    crons = [cron for cron, _ in TABLE] + ["30 2 * * *"]
    if zone != "UTC":  # in the hour that occurs twice, systemd runs times that next_after skips
        crons = [cron for cron in crons if cron not in ("* * * * *", "*/15 * * * *")]
    command = ["systemd-analyze", "calendar", "--iterations=6", f"--base-time={start} UTC"]
    calendars = [on_calendar(parse_cron(cron), zone) for cron in crons]
    environment = {**os.environ, "TZ": "UTC", "LC_ALL": "C"}
    done = subprocess.run([*command, *calendars], capture_output=True, text=True, check=True, env=environment)
    for cron, block in zip(crons, done.stdout.split("Normalized form:")[1:], strict=True):
        found = re.findall(r"(?:Next elapse|Iter\. #\d): \w+ (\S+ \S+) UTC", block)
        moment, expected = datetime.fromisoformat(f"{start}+00:00").astimezone(ZoneInfo(zone)), []
        for _ in range(6):
            moment = parse_cron(cron).next_after(moment)
            expected.append(moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S"))
        assert found == expected, cron


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("", "schedule: the section is missing"),
        ("cron: 0 3 * * *, caching: false, max_concurrency: 2", "got max_concurrency, caching"),
        ("cron: 0 3 * * *, start: '2026-03-01T13:00'", "got start"),
    ],
)
def test_settings_that_a_timer_does_not_support_are_refused(make_run, schedule, message):
    run, file = make_run(schedule)
    with pytest.raises(InputError, match=message):
        format_units(run, file)


def test_service_and_timer(make_run):
    run, file = make_run("cron: 0 3 * * *, catch_up: true, timezone: Europe/Berlin")
    units = format_units(run, file)
    workspace = f"{file.parent}/ws"
    assert list(units) == ["detloom-cells.service", "detloom-cells.timer"]
    assert units["detloom-cells.service"].splitlines()[1:] == [
        "[Unit]",
        "Description=detloom: pipeline cells",
        "",
        "[Service]",
        "Type=oneshot",
        "WorkingDirectory=/",
        "Environment=PYTHONUNBUFFERED=1",
        f"EnvironmentFile=-{workspace}/schedule.env",
        f'ExecStart="{sys.executable}" "-m" "detloom.pipelines.cli" "run" "{file}" "--workspace" "{workspace}"',
        "SuccessExitStatus=75",
        f"StandardOutput=append:{workspace}/schedule.log",
        f"StandardError=append:{workspace}/schedule.log",
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


def test_missed_runs_are_not_made_up_without_catch_up(make_run):
    assert "\nPersistent=false\n" in format_units(*make_run())["detloom-cells.timer"]


@pytest.mark.parametrize("folder", ["100%", "$HOME", 'a"b', "a'b", "a\\b", "[1]", "a*", "a\nb"])
def test_characters_that_systemd_escapes_are_refused(make_run, folder):
    run, file = make_run(folder=folder)
    with pytest.raises(InputError, match="rename it"):
        format_units(run, file)


def test_a_python_without_detloom_is_refused(make_run, monkeypatch):
    def distribution(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    with pytest.raises(InputError, match="pip install -e"):
        format_units(*make_run())


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_verifies_the_units(make_run, tmp_path):
    for name, text in format_units(*make_run("cron: '*/5 1,2 * 1-3 mon'")).items():
        (tmp_path / name).write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "detloom-cells.timer")]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert [line for line in checked.stderr.splitlines() if "detloom" in line] == []
