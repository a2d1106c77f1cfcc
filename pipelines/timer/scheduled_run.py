"""The command of a scheduled run and its times, for systemd and cron."""

import importlib.metadata
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

from detloom.components.notifier.read_secret import references_of
from detloom.schemas.errors import InputError
from detloom.schemas.reading.overrides import is_settings_file
from detloom.schemas.reading.redact import parse_secret_reference, redact
from detloom.schemas.run_file.read_run_file import PATH_VARIABLE
from detloom.schemas.run_file.run_file import RunFile
from detloom.schemas.run_file.schedule import Cron, Schedule, parse_cron

ENVIRONMENT_FILE, LOG_FILE = "schedule.env", "schedule.log"  # in the workspace


@dataclass(frozen=True, kw_only=True)
class ScheduledRun:
    """A command and its times.

    Attributes:
        name: name of the pipeline.
        words: words of the command, with absolute paths.
        workspace: folder of the environment file and the log.
        variables: environment variables that the run file and the options use.
    """

    name: str
    schedule: Schedule
    words: tuple[str, ...]
    workspace: Path
    variables: tuple[str, ...] = ()

    @property
    def cron(self) -> Cron:
        return parse_cron(self.schedule.cron)

    @property
    def unit(self) -> str:
        """Return the name of the units, without suffix."""
        return f"detloom-{self.name}"

    @property
    def environment_file(self) -> Path:
        """Return the file with secrets, which only the user can read; it may be missing."""
        return self.workspace / ENVIRONMENT_FILE

    @property
    def log_file(self) -> Path:
        return self.workspace / LOG_FILE

    def next_times(self, after: datetime, count: int) -> list[datetime]:
        """Return the next times, in the time zone of the schedule."""
        moment = after.astimezone(ZoneInfo(self.schedule.timezone))
        found: list[datetime] = []
        while len(found) < count and (following := self.cron.next_after(moment)) is not None:
            found.append(following)
            moment = following
        return found


def build_scheduled_run(
    run: RunFile, run_file: Path, settings: Sequence[str] = (), now: datetime | None = None
) -> ScheduledRun:
    """Build the command that runs the pipeline from any folder.

    Args:
        run: the run file as it was read, with its workspace.
        settings: values of the option --set.

    Raises:
        InputError: the schedule is missing or has settings that systemd and cron do not support, the package is not
            installed, or a path has characters that units and crontabs cannot contain.
    """
    if run.schedule is None:
        raise InputError(
            f"{run_file}: schedule: the section is missing; add one, for example schedule: {{cron: 0 3 * * *}}."
        )
    _check_schedule(run_file, run.schedule, now or datetime.now(timezone.utc))
    try:
        importlib.metadata.distribution("detloom")
    except importlib.metadata.PackageNotFoundError:
        raise InputError(
            f"{sys.executable}: detloom is not installed in this Python, so a timer cannot start it; install it with "
            "pip (pip install -e . for a checkout)."
        ) from None
    absolute = [str(Path(setting).absolute()) if is_settings_file(setting) else setting for setting in settings]
    options = [word for setting in absolute for word in ("--set", setting)]
    words = [sys.executable, "-m", "detloom.pipelines.cli", "run", str(run_file.absolute())]
    words += ["--workspace", run.workspace, *options]
    for word in words:
        if not word.isprintable():
            raise InputError(f"{redact(word)}: has characters that a unit or crontab cannot contain; rename it.")
    return ScheduledRun(
        name=run.name,
        schedule=run.schedule,
        words=tuple(words),
        workspace=Path(run.workspace),
        variables=_variables(run, run_file, settings),
    )


def _check_schedule(run_file: Path, schedule: Schedule, now: datetime) -> None:
    """Raise InputError for settings that neither systemd nor cron supports."""

    def refuse(field: str, got: object, allowed: str) -> None:
        raise InputError(f"{run_file}: schedule.{field}: got {got}, allowed with a timer on one machine: {allowed}.")

    if not schedule.caching:
        refuse("caching", "false", "true; unchanged nodes are taken from the cache")
    if schedule.max_concurrency != 1:
        refuse("max_concurrency", schedule.max_concurrency, "1; a run does nothing if another one uses its workspace")
    if schedule.end:
        refuse("end", repr(schedule.end), "no value; disable the timer at that time")
    start = schedule.start_time
    if start is not None and start > now:
        refuse("start", repr(schedule.start), "no value, or a time in the past; enable the timer at that time")


def _variables(run: RunFile, run_file: Path, settings: Sequence[str]) -> tuple[str, ...]:
    """Return the variables in paths (`${NAME}`) and secrets (`env:NAME`), each once."""
    texts = [run_file.read_text(encoding="utf-8"), *settings]
    texts += [Path(setting).read_text(encoding="utf-8") for setting in settings if is_settings_file(setting)]
    found = [name for text in texts for name in PATH_VARIABLE.findall(text)]
    secrets = references_of(run.notifications) if run.notifications is not None else ()
    found += [each.name for each in map(parse_secret_reference, secrets) if each.kind == "env"]
    return tuple(dict.fromkeys(found))
