"""A line of a user's crontab, for machines without systemd."""

import contextlib
import shlex
from datetime import datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

from detloom.pipelines.timer.scheduled_run import ScheduledRun
from detloom.schemas.errors import InputError

_LOCALTIME = Path("/etc/localtime")
_MAX_COMMAND = 998  # characters: MAX_COMMAND of Vixie cron is 1000 with line end and zero
_COMPARED_HOURS = 2 * 366 * 24


def format_crontab(run: ScheduledRun, now: datetime, localtime: Path = _LOCALTIME) -> str:
    """The line, with a comment above it.

    Args:
        localtime: the machine's time zone, which cron goes by.

    Raises:
        InputError: another time zone, runs to catch up with, a command that a crontab cannot hold.
    """
    schedule = run.schedule
    if schedule.catch_up:
        raise InputError("schedule.catch_up: got true, which cron does not do; use --kind systemd, or set it to false.")
    _check_timezone(schedule.timezone, now, localtime)
    environment, log = shlex.quote(str(run.environment_file)), shlex.quote(str(run.log_file))
    command = (
        f"cd / && if [ -r {environment} ]; then set -a; . {environment}; set +a; fi; "
        f"exec {shlex.join(run.words)} >> {log} 2>&1"
    )
    if "\\" in command:
        raise InputError("got a path or setting with a backslash, which crons read differently; rename it.")
    command = command.replace("%", "\\%")  # a bare one ends the command (man 5 crontab)
    if len(command) > _MAX_COMMAND:
        raise InputError(
            f"got a command of {len(command)} characters, allowed in a crontab: {_MAX_COMMAND}; use shorter paths, or "
            "write settings into the run file."
        )
    return (
        f"# detloom: pipeline {run.name}. Made by `detloom timer`; a run that finds another one in its workspace runs "
        f"nothing.\n{schedule.cron} {command}\n"
    )


def _check_timezone(name: str, now: datetime, localtime: Path) -> None:
    """Raise InputError unless the machine's clocks go as those of the zone, for two years."""
    machine: ZoneInfo | timezone = timezone.utc  # of a machine that has no such file
    with contextlib.suppress(FileNotFoundError), localtime.open("rb") as file:
        machine = ZoneInfo.from_file(file)
    wanted = ZoneInfo(name)
    for hour in range(_COMPARED_HOURS):
        moment = now.astimezone(timezone.utc) + timedelta(hours=hour)
        if moment.astimezone(machine).utcoffset() != moment.astimezone(wanted).utcoffset():
            raise InputError(
                f"schedule.timezone: got {name}, which is not the time zone of this machine, and cron knows no other; "
                "use --kind systemd, or write the times in that of the machine."
            )
