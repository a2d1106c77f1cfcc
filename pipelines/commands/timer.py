"""Command `detloom timer`. Imports are late to keep the CLI fast."""

import os
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from detloom.pipelines.command_line.command import command
from detloom.pipelines.command_line.options import FOLDER, PATH, override_options, read_override_options

if TYPE_CHECKING:
    from detloom.pipelines.timer.scheduled_run import ScheduledRun

_NEXT_SHOWN = 3


@command(
    "detloom timer run.yaml -o ~/.config/systemd/user",
    "systemctl --user daemon-reload && systemctl --user enable --now detloom-NAME.timer",
    "loginctl enable-linger     # also run while you are not logged in",
)
@click.argument("run_file", type=PATH)
@click.option(
    "--kind", type=click.Choice(["systemd", "cron"]), default="systemd", show_default=True, help="Scheduler to use."
)
@click.option(
    "-o",
    "folder",
    type=FOLDER,
    metavar="DIR",
    help="Write the files to DIR and create the workspace. Default: print them.",
)
@click.option(
    "--workspace",
    type=FOLDER,
    help="Workspace of the runs; overrides the run file. Default: detloom_runs/<name>.",
)
@override_options
def timer(
    run_file: Path,
    kind: Literal["systemd", "cron"],
    folder: Path | None,
    workspace: Path | None,
    settings: tuple[str, ...],
) -> None:
    """Write systemd units or a crontab line for scheduled runs.

    They run RUN_FILE on this machine at the times of its section `schedule`. Two runs never overlap: if another run
    uses the workspace, a run does nothing and exits with code 75. Runs append to schedule.log in the workspace, and
    read variables such as secrets from schedule.env there, in lines NAME='value'. Nothing is installed or enabled.
    """
    from detloom.pipelines.timer.formats import format_crontab, format_units
    from detloom.pipelines.timer.scheduled_run import build_scheduled_run
    from detloom.schemas.run_file.read_run_file import read_run_file

    now = datetime.now(timezone.utc)
    run = read_run_file(run_file, workspace, read_override_options(settings))
    scheduled = build_scheduled_run(run, run_file, settings, now)
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
    if folder is not None and kind == "systemd":
        enable = f"systemctl --user enable --now {scheduled.unit}.timer"
        click.echo(f"Next: systemctl --user daemon-reload && {enable}", err=True)


def _write(files: dict[str, str], folder: Path, scheduled: "ScheduledRun") -> None:
    from detloom.schemas.reading.text_file import write_text_file

    folder.mkdir(parents=True, exist_ok=True)
    scheduled.workspace.mkdir(parents=True, exist_ok=True)  # must exist, because systemd opens the log in it first
    for name, text in files.items():
        write_text_file(folder / name, text)
        click.echo(f"{folder / name}")
    _write_environment(scheduled)


def _write_environment(scheduled: "ScheduledRun") -> None:
    """Create a template that only the user can read, unless the file exists."""
    lines = ["# Environment of scheduled runs: NAME='value'"]
    lines += [f"#{name}=''" for name in scheduled.variables]
    try:
        descriptor = os.open(scheduled.environment_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    click.echo(f"{scheduled.environment_file}")
