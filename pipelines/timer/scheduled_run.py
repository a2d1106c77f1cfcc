"""What the clock has to start, whichever clock it is."""

import importlib.metadata
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

from detloom.components.notifier.read_secret import references_of
from detloom.schemas.cron import Cron, parse_cron
from detloom.schemas.errors import InputError
from detloom.schemas.read_run_file import PATH_VARIABLE
from detloom.schemas.redact import redact
from detloom.schemas.run_file import RunFile
from detloom.schemas.schedule_config import Schedule
from detloom.schemas.secret_reference import parse_secret_reference

ENVIRONMENT_FILE, LOG_FILE = "schedule.env", "schedule.log"  # in the workspace


@dataclass(frozen=True, kw_only=True)
class ScheduledRun:
    """A command and its times.

    Attributes:
        name: of the pipeline.
        words: of the command, all paths absolute.
        workspace: where environment file and log are.
        variables: environment variables that the run file and the options name.
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
        """Name of what is made, without its ending."""
        return f"detloom-{self.name}"

    @property
    def environment_file(self) -> Path:
        """Secrets, for the user's eyes alone; it may be missing."""
        return self.workspace / ENVIRONMENT_FILE

    @property
    def log_file(self) -> Path:
        return self.workspace / LOG_FILE

    def next_times(self, after: datetime, count: int) -> list[datetime]:
        """In the schedule's time zone."""
        moment = after.astimezone(ZoneInfo(self.schedule.timezone))
        found: list[datetime] = []
        while len(found) < count and (following := self.cron.next_after(moment)) is not None:
            found.append(following)
            moment = following
        return found


def build_scheduled_run(
    run: RunFile, run_file: Path, settings: Sequence[str] = (), hparams: str = "", now: datetime | None = None
) -> ScheduledRun:
    """The command that runs the pipeline, from whatever folder.

    Args:
        run: as it was read from the file, with its workspace.
        settings, hparams: the options --set and --hparams.

    Raises:
        InputError: no schedule, or one that a clock on one machine cannot keep; no installed package; a path with
            characters that units and crontabs cannot say.
    """
    if run.schedule is None:
        raise InputError(
            f"{run_file}: schedule: the section is missing; write one, such as schedule: {{cron: 0 3 * * *}}."
        )
    _check_schedule(run_file, run.schedule, now or datetime.now(timezone.utc))
    try:
        importlib.metadata.distribution("detloom")
    except importlib.metadata.PackageNotFoundError:
        raise InputError(
            f"{sys.executable}: detloom is not installed in this Python, so that a clock cannot start it; pip install "
            "it there (pip install -e . for a checkout)."
        ) from None
    options = [word for setting in settings for word in ("--set", setting)]
    if hparams:
        options += ["--hparams", str(Path(hparams).absolute()) if Path(hparams).is_file() else hparams]
    words = [sys.executable, "-m", "detloom.pipelines.cli", "run", str(run_file.absolute())]
    words += ["--workspace", run.workspace, *options]
    for word in words:
        if not word.isprintable():
            raise InputError(f"{redact(word)}: holds characters that a unit or crontab cannot say; rename it.")
    return ScheduledRun(
        name=run.name,
        schedule=run.schedule,
        words=tuple(words),
        workspace=Path(run.workspace),
        variables=_variables(run, run_file, settings, hparams),
    )


def _check_schedule(run_file: Path, schedule: Schedule, now: datetime) -> None:
    """Raise InputError for what neither systemd nor cron can do."""

    def refuse(field: str, got: object, allowed: str) -> None:
        raise InputError(f"{run_file}: schedule.{field}: got {got}, allowed with a timer on one machine: {allowed}.")

    if not schedule.caching:
        refuse("caching", "false", "true; what has not changed is answered from the cache")
    if schedule.max_concurrency != 1:
        refuse("max_concurrency", schedule.max_concurrency, "1; a run that finds another in its workspace runs nothing")
    if schedule.end:
        refuse("end", repr(schedule.end), "nothing; disable the timer when it is time")
    start = schedule.start_time
    if start is not None and start > now:
        refuse("start", repr(schedule.start), "nothing, or a moment that is over; enable the timer when it is time")


def _variables(run: RunFile, run_file: Path, settings: Sequence[str], hparams: str) -> tuple[str, ...]:
    """Of paths (`${NAME}`) and of secrets (`env:NAME`), each once."""
    texts = [run_file.read_text(encoding="utf-8"), *settings, hparams]
    if Path(hparams).is_file():
        texts.append(Path(hparams).read_text(encoding="utf-8"))
    found = [name for text in texts for name in PATH_VARIABLE.findall(text)]
    secrets = references_of(run.notifications) if run.notifications is not None else ()
    found += [each.name for each in map(parse_secret_reference, secrets) if each.kind == "env"]
    return tuple(dict.fromkeys(found))
