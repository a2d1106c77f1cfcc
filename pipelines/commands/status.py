"""`detloom status`: runs on Kubeflow Pipelines and Vertex AI."""

import json
from datetime import datetime, timezone

import click

from detloom.pipelines.command_line.command import command
from detloom.pipelines.command_line.options import json_option
from detloom.pipelines.command_line.remote_run import RemoteRun, every_option, remote_run_options, wait_option
from detloom.schemas.errors import InputError

_MAX_LISTED = 200


@command(
    "detloom status cells.yaml --runner vertex",
    "detloom status cells.yaml cells-20260131-030000-1a2b3c4d --runner vertex",
)
@remote_run_options
@click.argument("run_id", required=False)
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
def status(remote: RemoteRun, run_id: str | None, limit: int, wait: bool, every_seconds: float, as_json: bool) -> None:
    """Show runs on Kubeflow Pipelines or Vertex AI.

    Shows the latest runs of RUN_FILE's pipeline, or the tasks of the run RUN_ID. RUN_ID is printed by `detloom submit`
    and in the list of runs; a run's name works as well. Runs of a schedule are listed, too. With --wait and --json,
    progress lines go to standard error.
    """
    from detloom.pipelines.backends.run_status import format_run, format_runs, to_plain

    if wait and not run_id:
        raise InputError("--wait: needs a RUN_ID; `detloom status RUN_FILE` lists the ids.")
    backend = remote.connect()
    now = datetime.now(timezone.utc)
    if run_id and wait:
        remote.follow(backend, run_id, every_seconds, as_json=as_json)
    elif run_id:
        found = backend.get_run(run_id)
        click.echo(json.dumps(to_plain(found), indent=1) if as_json else format_run(found, now))
    else:
        runs = backend.latest_runs(limit)
        if as_json:
            click.echo(json.dumps([to_plain(each) for each in runs], indent=1))
        else:
            click.echo(format_runs(runs, now) if runs else f"No runs of '{remote.run.name}' yet.")
