"""`detloom doctor`: find what would prevent a run on this machine, in this Python or in a run's folders."""

import sys
from pathlib import Path

import click

from detloom.pipelines.command_line.command import command
from detloom.pipelines.command_line.options import PATH, json_option
from detloom.schemas.errors import ExitCode


@command("detloom doctor", "detloom doctor cells.yaml --json")
@click.argument("run_file", required=False, type=PATH)
@json_option
def doctor(run_file: Path | None, as_json: bool) -> None:
    """Find problems that would stop a run.

    Checks packages, disk, memory and devices. With RUN_FILE, also its folders, and a few dozen records of its data as
    ingestion does. Writes a test file in each folder of the run and removes it.
    """
    from detloom.pipelines.doctor.check_result import format_results
    from detloom.pipelines.doctor.check_run import check_machine_and_run
    from detloom.schemas.run_file.read_run_file import read_run_file

    run = read_run_file(run_file) if run_file else None
    click.echo("Checking; the imports of TensorFlow and TFX take up to a minute ...", err=True)
    results = check_machine_and_run(run)
    click.echo(format_results(results, as_json=as_json))
    if any(result.status == "error" for result in results):
        sys.exit(ExitCode.FAILED)
    if not as_json:
        from detloom.pipelines.local.console import format_next  # late: a broken installation may lack its imports

        click.echo(format_next("detloom", *(("run", run_file) if run_file else ("demo",))))
