"""Format a scheduled run as systemd units, or as a line of a user's crontab for machines without systemd."""

import contextlib
import shlex
from collections.abc import Collection
from datetime import datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

from detloom.pipelines.timer.scheduled_run import ScheduledRun
from detloom.schemas.errors import ExitCode, InputError
from detloom.schemas.run_file.schedule import Cron

_NAMES = ("Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat")
_FROM_MONDAY = (1, 2, 3, 4, 5, 6, 0)
_STOP_SECONDS = 600  # training saves its state before it stops
_GLOB = "*?[]\\"  # EnvironmentFile= is a glob pattern, and a trailing backslash continues the line
_LOCALTIME = Path("/etc/localtime")
_MAX_COMMAND = 998  # characters; MAX_COMMAND of Vixie cron is 1000 with line break and NUL
_COMPARED_HOURS = 2 * 366 * 24


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
                "on days that match both. Use one of the two, or --kind cron."
            )
        has_days = has_weekdays = False  # "or" with every day is every day
    weekdays = [_NAMES[day] for day in _FROM_MONDAY if day in cron.weekdays] if has_weekdays else []
    day = _numbers(cron.days, 31) if has_days else "*"
    date = f"*-{_numbers(cron.months, 12)}-{day}"
    time = f"{_numbers(cron.hours, 24)}:{_numbers(cron.minutes, 60)}:00"
    return " ".join([*([",".join(weekdays)] if weekdays else []), date, time, timezone])


def _numbers(values: Collection[int], how_many: int) -> str:
    return "*" if len(values) == how_many else ",".join(f"{value:02d}" for value in sorted(values))


def format_units(run: ScheduledRun) -> dict[str, str]:
    """Return the content of the units by file name.

    Raises:
        InputError: systemd does not support the times or paths.
    """
    executable, *words = run.words
    if "$" in executable:
        raise InputError(f"{executable}: systemd cannot start a program with $ in its path; use another folder.")
    if any(char in str(run.workspace) for char in _GLOB):
        raise InputError(
            f"{run.workspace}: a unit cannot contain a workspace with one of {' '.join(_GLOB)}; rename it."
        )
    command = " ".join([_quote(executable), *(_quote(word).replace("$", "$$") for word in words)])
    service = f"""\
# Written by `detloom timer`. If another run uses the workspace, a run does nothing and exits with {ExitCode.BUSY}.
[Unit]
Description=detloom: pipeline {run.name}

[Service]
Type=oneshot
WorkingDirectory=/
Environment=PYTHONUNBUFFERED=1
EnvironmentFile=-{_value(str(run.environment_file))}
ExecStart={command}
SuccessExitStatus={ExitCode.BUSY}
StandardOutput=append:{_value(str(run.log_file))}
StandardError=append:{_value(str(run.log_file))}
KillMode=mixed
TimeoutStopSec={_STOP_SECONDS}
"""
    timer = f"""\
# Written by `detloom timer` from the cron expression {run.schedule.cron}
[Unit]
Description=detloom: times of pipeline {run.name}

[Timer]
OnCalendar={on_calendar(run.cron, run.schedule.timezone)}
AccuracySec=1s
Persistent={"true" if run.schedule.catch_up else "false"}

[Install]
WantedBy=timers.target
"""
    return {f"{run.unit}.service": service, f"{run.unit}.timer": timer}


def _quote(word: str) -> str:
    """Quote a word of a command line (man 5 systemd.service), except `$`."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_value(escaped)}"'


def _value(text: str) -> str:
    """Escape a value in which systemd replaces specifiers (man 5 systemd.unit)."""
    return text.replace("%", "%%")


def format_crontab(run: ScheduledRun, now: datetime, localtime: Path = _LOCALTIME) -> str:
    """Return the line with a comment above it.

    Args:
        localtime: file of the machine's time zone, which cron uses.

    Raises:
        InputError: another time zone, catch_up, or a command that a crontab cannot contain.
    """
    schedule = run.schedule
    if schedule.catch_up:
        raise InputError("schedule.catch_up: got true, which cron cannot do; use --kind systemd, or set it to false.")
    _check_timezone(schedule.timezone, now, localtime)
    environment, log = shlex.quote(str(run.environment_file)), shlex.quote(str(run.log_file))
    command = (
        f"cd / && if [ -r {environment} ]; then set -a; . {environment}; set +a; fi; "
        f"exec {shlex.join(run.words)} >> {log} 2>&1"
    )
    if "\\" in command:
        raise InputError("got a path or setting with a backslash, which cron programs read differently; rename it.")
    command = command.replace("%", "\\%")  # an unescaped % ends the command (man 5 crontab)
    if len(command) > _MAX_COMMAND:
        raise InputError(
            f"got a command of {len(command)} characters, allowed in a crontab: {_MAX_COMMAND}; use shorter paths, or "
            "write settings into the run file."
        )
    return (
        f"# detloom: pipeline {run.name}. Written by `detloom timer`. If another run uses the workspace, a run does "
        f"nothing.\n{schedule.cron} {command}\n"
    )


def _check_timezone(name: str, now: datetime, localtime: Path) -> None:
    """Raise InputError unless the machine's time equals that of the zone for the next two years."""
    machine: ZoneInfo | timezone = timezone.utc  # the default without such a file
    with contextlib.suppress(FileNotFoundError), localtime.open("rb") as file:
        machine = ZoneInfo.from_file(file)
    wanted = ZoneInfo(name)
    for hour in range(_COMPARED_HOURS):
        moment = now.astimezone(timezone.utc) + timedelta(hours=hour)
        if moment.astimezone(machine).utcoffset() != moment.astimezone(wanted).utcoffset():
            raise InputError(
                f"schedule.timezone: got {name}, which is not the time zone of this machine, and cron supports no "
                "other; use --kind systemd, or write the times in the machine's time zone."
            )
