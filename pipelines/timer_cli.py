"""`detloom timer`: scheduled runs on one machine. Imports are late."""

import os
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from detloom.pipelines.config_cli import override_options, read_override_options
from detloom.schemas.errors import InputError

if TYPE_CHECKING:
    from detloom.pipelines.timer.scheduled_run import ScheduledRun

_NEXT_SHOWN = 3


@click.command()
@click.argument("run_file", type=click.Path(path_type=Path))
@click.option(
    "--kind", type=click.Choice(["systemd", "cron"]), default="systemd", show_default=True, help="Which clock to use."
)
@click.option(
    "-o",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write the files there, and make the workspace. Default: print them.",
)
@click.option(
    "--workspace",
    type=click.Path(path_type=Path, file_okay=False),
    help="Of the runs; overrides the run file's. Default: detloom_runs/<name>.",
)
@override_options
def timer(
    run_file: Path,
    kind: Literal["systemd", "cron"],
    folder: Path | None,
    workspace: Path | None,
    settings: tuple[str, ...],
    hparams: str,
) -> None:
    """Write what runs RUN_FILE by the clock of this machine, as its section `schedule` says.

    For systemd a service and a timer, else a line of a crontab. Two runs never overlap: one that finds another in its
    workspace runs nothing, and ends with exit code 75. Runs append to schedule.log in the workspace, and get the
    variables of schedule.env there: lines such as NAME='value', for secrets. Nothing is installed or enabled.

    \b
    detloom timer run.yaml -o ~/.config/systemd/user
    systemctl --user daemon-reload && systemctl --user enable --now detloom-NAME.timer
    loginctl enable-linger     # runs while you are not logged in, too
    """
    from detloom.pipelines.timer.crontab import format_crontab
    from detloom.pipelines.timer.scheduled_run import build_scheduled_run
    from detloom.pipelines.timer.systemd_units import format_units
    from detloom.schemas.read_run_file import read_run_file

    now = datetime.now(timezone.utc)
    run = read_run_file(run_file, workspace, read_override_options(settings, hparams))
    scheduled = build_scheduled_run(run, run_file, settings, hparams, now)
    if kind == "systemd":
        files = format_units(scheduled)
    else:
        files = {f"{scheduled.unit}.crontab": format_crontab(scheduled, now)}
    if folder is None:
        for name, text in files.items():
            click.echo(f"# --- {name}\n{text}")
    else:
        _write(files, folder, scheduled)
    times = ", ".join(moment.isoformat(" ", "minutes") for moment in scheduled.next_times(now, _NEXT_SHOWN))
    click.echo(f"next runs: {times}", err=True)


def _write(files: dict[str, str], folder: Path, scheduled: "ScheduledRun") -> None:
    from detloom.schemas.text_file import write_text_file

    try:
        folder.mkdir(parents=True, exist_ok=True)
        scheduled.workspace.mkdir(parents=True, exist_ok=True)  # a log is appended to before anything runs
        for name, text in files.items():
            write_text_file(folder / name, text)
            click.echo(f"{folder / name}")
        _write_environment(scheduled)
    except OSError as error:
        raise InputError(f"{error.filename or folder}: cannot be written ({error.strerror or error}).") from None


def _write_environment(scheduled: "ScheduledRun") -> None:
    """A file to be filled in, that nobody else can read; one that is there stays as it is."""
    lines = ["# Environment of scheduled runs: NAME='value'"]
    lines += [f"#{name}=''" for name in scheduled.variables]
    try:
        descriptor = os.open(scheduled.environment_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    click.echo(f"{scheduled.environment_file}")


COMMANDS = (timer,)
