"""`detloom status`: runs on Kubeflow Pipelines and Vertex AI."""

import json
from datetime import datetime, timezone
from pathlib import Path

import click

from detloom.pipelines.commands.exit_codes import end_of_help
from detloom.pipelines.commands.options import PATH, json_option, override_options
from detloom.pipelines.commands.remote_run import every_option, follow, read_remote_run, runner_option, wait_option
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.run_file import Place

_MAX_LISTED = 200


@click.command(
    epilog=end_of_help(
        "status",
        "detloom status cells.yaml --runner vertex",
        "detloom status cells.yaml cells-20260131-030000-1a2b3c4d --runner vertex",
    )
)
@click.argument("run_file", type=PATH)
@click.argument("run_id", required=False)
@runner_option
@click.option(
    "--limit",
    type=click.IntRange(min=1, max=_MAX_LISTED),
    default=10,
    show_default=True,
    metavar="N",
    help="Without RUN_ID: how many runs to list.",
)
@wait_option
@every_option
@json_option
@override_options
def status(
    run_file: Path,
    run_id: str | None,
    runner: Place | None,
    limit: int,
    wait: bool,
    every_seconds: float,
    as_json: bool,
    settings: tuple[str, ...],
) -> None:
    """Show runs on Kubeflow Pipelines or Vertex AI.

    Shows the latest runs of RUN_FILE's pipeline, or the tasks of the run RUN_ID. RUN_ID is printed by `detloom submit`
    and in the list of runs; a run's name works as well. Runs of a schedule are listed, too. With --wait and --json,
    progress lines go to standard error.
    """
    from detloom.pipelines.backends.backend import connect
    from detloom.pipelines.backends.run_status import format_run, format_runs, to_plain

    if wait and not run_id:
        raise InputError("--wait: needs a RUN_ID; `detloom status RUN_FILE` lists the ids.")
    run, place = read_remote_run(run_file, runner, settings)
    backend = connect(run, place)
    now = datetime.now(timezone.utc)
    if run_id and wait:
        follow(backend, run_id, run_file, place, every_seconds, as_json=as_json)
    elif run_id:
        found = backend.get_run(run_id)
        click.echo(json.dumps(to_plain(found), indent=1) if as_json else format_run(found, now))
    else:
        runs = backend.latest_runs(limit)
        if as_json:
            click.echo(json.dumps([to_plain(each) for each in runs], indent=1))
        else:
            click.echo(format_runs(runs, now) if runs else f"No runs of '{run.name}' yet.")
