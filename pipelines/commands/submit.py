"""`detloom submit`: run a pipeline on Kubeflow Pipelines or Vertex AI."""

import json
from pathlib import Path

import click

from detloom.pipelines.command_line.command import command
from detloom.pipelines.command_line.options import json_option
from detloom.pipelines.command_line.remote_run import (
    RemoteRun,
    every_option,
    job_option,
    remote_run_options,
    wait_option,
)


@command("detloom submit cells.yaml --runner vertex --wait")
@remote_run_options
@job_option
@click.option("--name", default="", metavar="NAME", help="Name of the run. Default: the pipeline's name and the time.")
@click.option("--no-cache", is_flag=True, help="Run every task. Default: take unchanged tasks from the cache.")
@wait_option
@every_option
@json_option
def submit(
    remote: RemoteRun,
    job_file: Path | None,
    name: str,
    no_cache: bool,
    wait: bool,
    every_seconds: float,
    as_json: bool,
) -> None:
    """Run a pipeline on Kubeflow Pipelines or Vertex AI.

    The pipeline is that of RUN_FILE. Prints the run's id and the link to its page. Kubeflow requests use the token that
    `kubeflow.token` names, Vertex AI requests use Application Default Credentials. A run name is submitted only once:
    if the command was interrupted, repeat it with the same --name.
    """
    from detloom.pipelines.backends.backend import PLACE_NAMES, submit_once
    from detloom.pipelines.backends.compiled_job import check_run_name, new_run_name
    from detloom.pipelines.backends.run_status import to_plain

    if name:
        check_run_name(name)
    job = remote.read_job(job_file, is_caching=not no_cache)
    backend = remote.connect()
    remote.warn(backend)
    status = submit_once(backend, job, name or new_run_name(remote.run.name), is_new_name=not name)
    click.echo(f"Submitted to {PLACE_NAMES[remote.place]}: {status.run_id}", err=as_json)
    click.echo(f"  {status.link}", err=as_json)
    if wait:
        remote.follow(backend, status.run_id, every_seconds, as_json=as_json)
    elif as_json:
        click.echo(json.dumps(to_plain(status), indent=1))
    else:
        click.echo(f"Next: {remote.status_command(status.run_id)}")
