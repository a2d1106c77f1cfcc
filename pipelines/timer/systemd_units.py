"""A service and a timer for systemd. Either manager takes them, the user's and the system's."""

from detloom.pipelines.run_lock import BUSY_EXIT_CODE
from detloom.pipelines.timer.on_calendar import on_calendar
from detloom.pipelines.timer.scheduled_run import ScheduledRun
from detloom.schemas.errors import InputError

_STOP_SECONDS = 600  # a training that is told to end saves its state first
_GLOB = "*?[]\\"  # EnvironmentFile= is a pattern, and a backslash may go on with the next line


def format_units(run: ScheduledRun) -> dict[str, str]:
    """Content by file name.

    Raises:
        InputError: times or paths that systemd cannot express.
    """
    executable, *words = run.words
    if "$" in executable:
        raise InputError(f"{executable}: systemd cannot start a program with $ in its path; use another folder.")
    if any(char in str(run.workspace) for char in _GLOB):
        raise InputError(
            f"{run.workspace}: a workspace with one of {' '.join(_GLOB)} cannot stand in a unit; rename it."
        )
    command = " ".join([_quote(executable), *(_quote(word).replace("$", "$$") for word in words)])
    service = f"""\
# Made by `detloom timer`. A run that finds another one in its workspace ends with {BUSY_EXIT_CODE} and runs nothing.
[Unit]
Description=detloom: pipeline {run.name}

[Service]
Type=oneshot
WorkingDirectory=/
Environment=PYTHONUNBUFFERED=1
EnvironmentFile=-{_value(str(run.environment_file))}
ExecStart={command}
SuccessExitStatus={BUSY_EXIT_CODE}
StandardOutput=append:{_value(str(run.log_file))}
StandardError=append:{_value(str(run.log_file))}
KillMode=mixed
TimeoutStopSec={_STOP_SECONDS}
"""
    timer = f"""\
# Made by `detloom timer` from the cron expression {run.schedule.cron}
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
    """A word of a command line (man 5 systemd.service); `$` is left to the caller."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_value(escaped)}"'


def _value(text: str) -> str:
    """A path where systemd replaces specifiers (man 5 systemd.unit)."""
    return text.replace("%", "%%")
