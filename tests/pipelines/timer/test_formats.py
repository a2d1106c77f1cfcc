import os
import re
import shutil
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from detloom.pipelines.timer.formats import format_crontab, format_units, on_calendar
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.schedule import parse_cron

TABLE = [
    ("0 3 * * *", "*-*-* 03:00:00 UTC"),
    ("* * * * *", "*-*-* *:*:00 UTC"),
    ("*/15 * * * *", "*-*-* *:00,15,30,45:00 UTC"),
    ("0 */6 * * *", "*-*-* 00,06,12,18:00:00 UTC"),
    ("0 8-10 * * *", "*-*-* 08,09,10:00:00 UTC"),
    ("5,35 8-18/5 * * *", "*-*-* 08,13,18:05,35:00 UTC"),
    ("0 3 * * 0", "Sun *-*-* 03:00:00 UTC"),
    ("0 3 * * 7", "Sun *-*-* 03:00:00 UTC"),
    ("0 3 * * sun,MON", "Mon,Sun *-*-* 03:00:00 UTC"),
    ("0 3 * * 1-5", "Mon,Tue,Wed,Thu,Fri *-*-* 03:00:00 UTC"),
    ("0 3 * * 5-7", "Fri,Sat,Sun *-*-* 03:00:00 UTC"),
    ("0 3 1 * *", "*-*-01 03:00:00 UTC"),
    ("0 3 31 1,jul *", "*-01,07-31 03:00:00 UTC"),
    ("0 3 29 2 *", "*-02-29 03:00:00 UTC"),
    ("0 3 1-31 * *", "*-*-* 03:00:00 UTC"),
    ("0 3 */10 * 1", "Mon *-*-01,11,21,31 03:00:00 UTC"),  # with a star cron requires both as well
    ("0 3 1 * */2", "Tue,Thu,Sat,Sun *-*-01 03:00:00 UTC"),
    ("0 3 13 * 0-6", "*-*-* 03:00:00 UTC"),  # without a star either is enough, and 0-6 is every day
    ("0 3 1-31 * 5", "*-*-* 03:00:00 UTC"),
]
NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)
NOWHERE = Path("/nowhere")  # a machine without the file: UTC
BERLIN = next(
    (path for root in ("/usr/share/zoneinfo", "/usr/lib/zoneinfo") if (path := Path(root, "Europe/Berlin")).is_file()),
    None,
)


@pytest.mark.parametrize(("cron", "expected"), TABLE)
def test_cron_expression_is_converted(cron, expected):
    assert on_calendar(parse_cron(cron), "UTC") == expected


def test_time_zone_is_last():
    assert on_calendar(parse_cron("0 3 * * *"), "Europe/Berlin") == "*-*-* 03:00:00 Europe/Berlin"


@pytest.mark.parametrize("cron", ["0 3 13 * 5", "0 3 1-30 * 0-5"])
def test_days_of_month_or_week_are_refused(cron):
    with pytest.raises(InputError, match=r"schedule\.cron: .*--kind cron"):
        on_calendar(parse_cron(cron), "UTC")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize("cron", [cron for cron, _ in TABLE] + ["30 2 * * *"])
@pytest.mark.parametrize(
    "start", ["2026-03-27 01:30:00", "2026-10-24 01:30:00"]
)  # clocks change on 29 March, 25 October
def test_systemd_computes_the_times_of_cron(cron, zone, start):
    if zone != "UTC" and cron in ("* * * * *", "*/15 * * * *"):
        pytest.skip("in the hour that occurs twice, systemd runs times that next_after skips")
    command = ["systemd-analyze", "calendar", "--iterations=6", f"--base-time={start} UTC"]
    calendar = on_calendar(parse_cron(cron), zone)
    environment = {**os.environ, "TZ": "UTC", "LC_ALL": "C"}
    output = subprocess.run([*command, calendar], capture_output=True, text=True, check=True, env=environment).stdout
    found = re.findall(r"(?:Next elapse|Iter\. #\d): \w+ (\S+ \S+) UTC", output)
    moment, expected = datetime.fromisoformat(f"{start}+00:00").astimezone(ZoneInfo(zone)), []
    for _ in range(6):
        moment = parse_cron(cron).next_after(moment)
        expected.append(moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S"))
    assert found == expected


def test_service_and_timer(make_scheduled):
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


def test_missed_runs_are_not_made_up_without_catch_up(make_scheduled):
    assert "\nPersistent=false\n" in format_units(make_scheduled())["detloom-cells.timer"]


def test_characters_special_to_systemd_are_escaped(make_scheduled):
    words = ("/opt/my python/bin/python", "run", 'a "b" $HOME %h \\n', "it's; this")
    service = format_units(make_scheduled(*words, workspace="/runs/100% my cells"))["detloom-cells.service"]
    assert r'ExecStart="/opt/my python/bin/python" "run" "a \"b\" $$HOME %%h \\n" "it' in service
    assert '"it\'s; this"\n' in service
    assert "EnvironmentFile=-/runs/100%% my cells/schedule.env\n" in service
    assert "append:/runs/100%% my cells/schedule.log\n" in service


@pytest.mark.parametrize("workspace", ["/runs/[1]", "/runs/a*", "/runs/a\\b"])
def test_workspace_with_glob_characters_is_refused(make_scheduled, workspace):
    with pytest.raises(InputError, match=re.escape(workspace)):
        format_units(make_scheduled(workspace=workspace))


def test_program_with_a_dollar_in_its_path_is_refused(make_scheduled):
    with pytest.raises(InputError, match=r"/opt/\$x/python: "):
        format_units(make_scheduled("/opt/$x/python"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("workspace", ["/runs/cells", "/runs/100% my $cells 'x' \"y\""])
def test_systemd_verifies_the_units(make_scheduled, tmp_path, workspace):
    words = (sys.executable, "-m", "detloom.pipelines.cli", 'a "b" $HOME %h', "c\\d")
    for name, text in format_units(make_scheduled(*words, workspace=workspace, cron="*/5 1,2 * 1-3 mon")).items():
        (tmp_path / name).write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "detloom-cells.timer")]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    problems = [line for line in checked.stderr.splitlines() if "detloom" in line]
    assert problems == []


def unescape(line: str) -> str:
    """Return the command that cron passes to the shell: the sixth field of a line (man 5 crontab)."""
    command = line.split(" ", 5)[5]
    assert "%" not in command.replace("\\%", "")
    return command.replace("\\%", "%")


def test_line_has_times_environment_command_and_log(make_scheduled):
    comment, line = format_crontab(make_scheduled(cron="0 3 * * mon-fri"), NOW, NOWHERE).splitlines()
    assert comment.startswith("# detloom: pipeline cells.")
    assert line == (
        "0 3 * * mon-fri "
        "cd / && if [ -r /runs/cells/schedule.env ]; then set -a; . /runs/cells/schedule.env; set +a; fi; "
        "exec /usr/bin/python3 -m detloom.pipelines.cli run /data/run.yaml >> /runs/cells/schedule.log 2>&1"
    )


def test_shell_gets_the_words_unchanged_and_the_variables(make_scheduled, tmp_path):
    workspace = tmp_path / "100% $my 'cells'"
    workspace.mkdir()
    (workspace / "schedule.env").write_text("TOKEN='a b'\n")
    script = 'import os, sys; print(os.getcwd(), os.environ["TOKEN"], sys.argv[1:])'
    scheduled = make_scheduled("/usr/bin/env", "python3", "-c", script, '50% "of" $HOME', workspace=str(workspace))
    _, line = format_crontab(scheduled, NOW, NOWHERE).splitlines()
    subprocess.run(["/bin/sh", "-c", unescape(line)], check=True)
    assert (workspace / "schedule.log").read_text() == "/ a b ['50% \"of\" $HOME']\n"


def test_catch_up_is_refused(make_scheduled):
    with pytest.raises(InputError, match=r"schedule\.catch_up: got true, .*--kind systemd"):
        format_crontab(make_scheduled(catch_up=True), NOW, NOWHERE)


def test_time_zone_other_than_that_of_the_machine_is_refused(make_scheduled):
    with pytest.raises(InputError, match=r"schedule\.timezone: got Europe/London, "):
        format_crontab(make_scheduled(timezone="Europe/London"), NOW, NOWHERE)


@pytest.mark.parametrize("zone", ["UTC", "Etc/UTC", "Africa/Abidjan"])
def test_time_zone_with_another_name_but_the_same_time_is_accepted(make_scheduled, zone):
    assert format_crontab(make_scheduled(timezone=zone), NOW, NOWHERE)


@pytest.mark.skipif(BERLIN is None, reason="the system has no time zone data")
def test_time_zone_of_the_machine_is_read_from_its_file(make_scheduled):
    assert format_crontab(make_scheduled(timezone="Europe/Paris"), NOW, BERLIN)  # the same time all year
    with pytest.raises(InputError, match=r"schedule\.timezone: got UTC, "):
        format_crontab(make_scheduled(), NOW, BERLIN)


def test_backslash_is_refused(make_scheduled):
    with pytest.raises(InputError, match="backslash"):
        format_crontab(make_scheduled("/usr/bin/python3", "a\\b"), NOW, NOWHERE)


def test_command_that_is_too_long_is_refused(make_scheduled):
    with pytest.raises(InputError, match=r"got a command of \d{4} characters, allowed in a crontab: 998"):
        format_crontab(make_scheduled("/usr/bin/python3", "x" * 1000), NOW, NOWHERE)
