"""Scheduled runs on one machine: systemd units."""

import importlib.metadata
import re
import sys
from collections.abc import Collection
from pathlib import Path

from detloom.schemas.errors import ExitCode, InputError
from detloom.schemas.reading.redact import redact
from detloom.schemas.run_file.run_file import RunFile
from detloom.schemas.run_file.schedule import Cron, Schedule, parse_cron

ENVIRONMENT_FILE, LOG_FILE = "schedule.env", "schedule.log"  # in the workspace
_WEEKDAYS = {1: "Mon", 2: "Tue", 3: "Wed", 4: "Thu", 5: "Fri", 6: "Sat", 0: "Sun"}
_STOP_SECONDS = 600  # training saves its state before it stops
_PLAIN_PATH = re.compile(r"[\w@+=:,./ -]+")  # systemd has its own rules for other characters


def check_schedule(run: RunFile) -> Schedule:
    """Return the section `schedule`; InputError if it is missing, or has settings for clusters only."""
    if run.schedule is None:
        raise InputError("schedule: the section is missing; add one, for example schedule: {cron: 0 3 * * *}.")
    schedule = run.schedule
    plain = Schedule(cron=schedule.cron, timezone=schedule.timezone, catch_up=schedule.catch_up)
    others = [name for name, value in vars(schedule).items() if value != getattr(plain, name)]
    if others:
        allowed = "cron, timezone and catch_up"
        raise InputError(f"schedule: got {', '.join(others)}, allowed with a timer on one machine: {allowed}.")
    return schedule


def run_command(run: RunFile, run_file: Path) -> list[str]:
    """Return the words of the command that runs the pipeline from any folder.

    Raises:
        InputError: a path has unusual characters, or detloom is not installed.
    """
    try:
        importlib.metadata.distribution("detloom")
    except importlib.metadata.PackageNotFoundError:
        raise InputError(
            f"{sys.executable}: detloom is not installed in this Python, so a timer cannot start it; install it with "
            "pip (pip install -e . for a checkout)."
        ) from None
    words = [
        sys.executable,
        "-m",
        "detloom.pipelines.cli",
        "run",
        str(run_file.absolute()),
        "--workspace",
        run.workspace,
    ]
    for word in words:
        if not _PLAIN_PATH.fullmatch(word):
            allowed = "letters, digits, spaces and @ + = : , . / - _"
            raise InputError(f"got the path {redact(word)}, allowed for a timer: {allowed}; rename it.")
    return words


def on_calendar(cron: Cron, timezone: str) -> str:
    """Return the same times, for example "Mon,Fri *-*-* 03:00:00 Europe/Berlin".

    As in `Cron.next_after`, a time that a daylight saving change skips is left out, and one that occurs twice counts
    once (tested with systemd 252).

    Raises:
        InputError: days of the month and days of the week, which cron combines with "or" and systemd with "and".
    """
    has_days, has_weekdays = len(cron.days) < 31, len(cron.weekdays) < 7
    if not (cron.any_day or cron.any_weekday):
        if has_days and has_weekdays:
            raise InputError(
                "schedule.cron: has days of the month and days of the week. Cron runs on either of them, systemd only "
                "on days that match both. Use one of the two."
            )
        has_days = has_weekdays = False  # "or" with every day is every day
    weekdays = [name for day, name in _WEEKDAYS.items() if day in cron.weekdays] if has_weekdays else []
    day = _numbers(cron.days, 31) if has_days else "*"
    date = f"*-{_numbers(cron.months, 12)}-{day}"
    time = f"{_numbers(cron.hours, 24)}:{_numbers(cron.minutes, 60)}:00"
    return " ".join([*([",".join(weekdays)] if weekdays else []), date, time, timezone])


def _numbers(values: Collection[int], how_many: int) -> str:
    return "*" if len(values) == how_many else ",".join(f"{value:02d}" for value in sorted(values))


def format_units(run: RunFile, run_file: Path) -> dict[str, str]:
    """Return the content of the systemd units by file name.

    Raises:
        InputError: systemd does not support the times or paths.
    """
    schedule = check_schedule(run)
    command = " ".join(f'"{word}"' for word in run_command(run, run_file))
    service = f"""\
# Written by `detloom timer`. If another run uses the workspace, a run does nothing and exits with {ExitCode.BUSY}.
[Unit]
Description=detloom: pipeline {run.name}

[Service]
Type=oneshot
WorkingDirectory=/
Environment=PYTHONUNBUFFERED=1
EnvironmentFile=-{run.workspace}/{ENVIRONMENT_FILE}
ExecStart={command}
SuccessExitStatus={ExitCode.BUSY}
StandardOutput=append:{run.workspace}/{LOG_FILE}
StandardError=append:{run.workspace}/{LOG_FILE}
KillMode=mixed
TimeoutStopSec={_STOP_SECONDS}
"""
    timer = f"""\
# Written by `detloom timer` from the cron expression {schedule.cron}
[Unit]
Description=detloom: times of pipeline {run.name}

[Timer]
OnCalendar={on_calendar(parse_cron(schedule.cron), schedule.timezone)}
AccuracySec=1s
Persistent={"true" if schedule.catch_up else "false"}

[Install]
WantedBy=timers.target
"""
    return {f"detloom-{run.name}.service": service, f"detloom-{run.name}.timer": timer}
