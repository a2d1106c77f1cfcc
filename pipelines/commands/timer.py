"""Command `detloom timer`. Imports are late to keep the CLI fast."""

from pathlib import Path

import click

from detloom.pipelines.command_line.command import command
from detloom.pipelines.command_line.options import FOLDER, PATH


@command(
    "detloom timer run.yaml -o ~/.config/systemd/user",
    "systemctl --user daemon-reload && systemctl --user enable --now detloom-NAME.timer",
    "loginctl enable-linger     # also run while you are not logged in",
)
@click.argument("run_file", type=PATH)
@click.option("-o", "folder", type=FOLDER, help="Write the files to this folder and create the workspace.")
def timer(run_file: Path, folder: Path | None) -> None:
    """Print systemd units for scheduled runs.

    They run RUN_FILE on this machine at the times of its section `schedule`. Two runs never overlap: if another run
    uses the workspace, a run does nothing and exits with code 75. Runs append to schedule.log in the workspace, and
    read variables such as secrets from schedule.env there, in lines NAME='value'. Nothing is installed or enabled.
    """
    from detloom.pipelines.timer import format_units
    from detloom.schemas.reading.text_file import write_text_file
    from detloom.schemas.run_file.read_run_file import read_run_file

    run = read_run_file(run_file)
    files = format_units(run, run_file)
    if folder is None:
        for name, text in files.items():
            click.echo(f"# --- {name}\n{text}")
        return
    folder.mkdir(parents=True, exist_ok=True)
    Path(run.workspace).mkdir(parents=True, exist_ok=True)  # systemd opens the log in it first
    for name, text in files.items():
        write_text_file(folder / name, text)
        click.echo(f"{folder / name}")
    enable = f"systemctl --user enable --now detloom-{run.name}.timer"
    click.echo(f"Next: systemctl --user daemon-reload && {enable}", err=True)
