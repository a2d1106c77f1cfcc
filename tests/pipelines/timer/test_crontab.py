import subprocess
from datetime import datetime, timezone
from pathlib import Path

import pytest

from detloom.pipelines.timer.crontab import format_crontab
from detloom.schemas.errors import InputError

NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)
NOWHERE = Path("/nowhere")  # a machine without the file: UTC
BERLIN = next(
    (path for root in ("/usr/share/zoneinfo", "/usr/lib/zoneinfo") if (path := Path(root, "Europe/Berlin")).is_file()),
    None,
)


def unescape(line: str) -> str:
    """What cron gives to the shell of a line's sixth field (man 5 crontab)."""
    command = line.split(" ", 5)[5]
    assert "%" not in command.replace("\\%", "")
    return command.replace("\\%", "%")


def test_the_line_has_times_environment_command_and_log(make_scheduled):
    comment, line = format_crontab(make_scheduled(cron="0 3 * * mon-fri"), NOW, NOWHERE).splitlines()
    assert comment.startswith("# detloom: pipeline cells.")
    assert line == (
        "0 3 * * mon-fri "
        "cd / && if [ -r /runs/cells/schedule.env ]; then set -a; . /runs/cells/schedule.env; set +a; fi; "
        "exec /usr/bin/python3 -m detloom.pipelines.cli run /data/run.yaml >> /runs/cells/schedule.log 2>&1"
    )


def test_the_shell_gets_the_words_as_they_are_and_the_variables(make_scheduled, tmp_path):
    workspace = tmp_path / "100% $my 'cells'"
    workspace.mkdir()
    (workspace / "schedule.env").write_text("TOKEN='a b'\n")
    script = 'import os, sys; print(os.getcwd(), os.environ["TOKEN"], sys.argv[1:])'
    scheduled = make_scheduled("/usr/bin/env", "python3", "-c", script, '50% "of" $HOME', workspace=str(workspace))
    _, line = format_crontab(scheduled, NOW, NOWHERE).splitlines()
    subprocess.run(["/bin/sh", "-c", unescape(line)], check=True)
    assert (workspace / "schedule.log").read_text() == "/ a b ['50% \"of\" $HOME']\n"


def test_missed_runs_are_not_made_up_for(make_scheduled):
    with pytest.raises(InputError, match=r"schedule\.catch_up: got true, which cron does not do; use --kind systemd"):
        format_crontab(make_scheduled(catch_up=True), NOW, NOWHERE)


def test_another_time_zone_than_the_machines_is_refused(make_scheduled):
    with pytest.raises(InputError, match=r"schedule\.timezone: got Europe/London, which is not the time zone"):
        format_crontab(make_scheduled(timezone="Europe/London"), NOW, NOWHERE)


@pytest.mark.parametrize("zone", ["UTC", "Etc/UTC", "Africa/Abidjan"])
def test_another_name_of_the_same_time_is_no_other_time_zone(make_scheduled, zone):
    assert format_crontab(make_scheduled(timezone=zone), NOW, NOWHERE)


@pytest.mark.skipif(BERLIN is None, reason="the system has no time zone data")
def test_the_time_zone_of_the_machine_is_read_from_its_file(make_scheduled):
    assert format_crontab(make_scheduled(timezone="Europe/Paris"), NOW, BERLIN)  # clocks go alike
    with pytest.raises(InputError, match="got UTC, which is not the time zone"):
        format_crontab(make_scheduled(), NOW, BERLIN)


def test_a_backslash_is_refused(make_scheduled):
    with pytest.raises(InputError, match="backslash"):
        format_crontab(make_scheduled("/usr/bin/python3", "a\\b"), NOW, NOWHERE)


def test_a_command_that_is_too_long_is_refused(make_scheduled):
    with pytest.raises(InputError, match=r"got a command of \d{4} characters, allowed in a crontab: 998"):
        format_crontab(make_scheduled("/usr/bin/python3", "x" * 1000), NOW, NOWHERE)
