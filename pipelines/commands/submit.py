"""`detloom submit`: run a pipeline on Kubeflow Pipelines or Vertex AI."""

import json
from dataclasses import replace
from pathlib import Path

import click

from detloom.pipelines.commands.exit_codes import end_of_help
from detloom.pipelines.commands.options import PATH, json_option, override_options
from detloom.pipelines.commands.remote_run import (
    every_option,
    follow,
    job_option,
    read_job,
    read_remote_run,
    runner_option,
    status_command,
    wait_option,
    warn,
)
from detloom.schemas.run_file.run_file import Place


@click.command(epilog=end_of_help("submit", "detloom submit cells.yaml --runner vertex --wait"))
@click.argument("run_file", type=PATH)
@runner_option
@job_option
@click.option("--name", default="", metavar="NAME", help="Name of the run. Default: the pipeline's name and the time.")
@click.option("--no-cache", is_flag=True, help="Run every task. Default: take unchanged tasks from the cache.")
@wait_option
@every_option
@json_option
@override_options
def submit(
    run_file: Path,
    runner: Place | None,
    job_file: Path | None,
    name: str,
    no_cache: bool,
    wait: bool,
    every_seconds: float,
    as_json: bool,
    settings: tuple[str, ...],
) -> None:
    """Run a pipeline on Kubeflow Pipelines or Vertex AI.

    The pipeline is that of RUN_FILE. Prints the run's id and the link to its page. Kubeflow requests use the token that
    `kubeflow.token` names, Vertex AI requests use Application Default Credentials. A run name is submitted only once:
    if the command was interrupted, repeat it with the same --name.
    """
    from detloom.pipelines.backends.backend import PLACE_NAMES, connect, submit_once
    from detloom.pipelines.backends.compiled_job import check_run_name, new_run_name, without_cache
    from detloom.pipelines.backends.run_status import to_plain

    if name:
        check_run_name(name)
    run, place = read_remote_run(run_file, runner, settings)
    job = read_job(run, place, job_file)
    if no_cache:
        job = replace(job, spec=without_cache(job.spec))
    backend = connect(run, place)
    warn(backend, run)
    status = submit_once(backend, job, name or new_run_name(run.name), is_new_name=not name)
    click.echo(f"Submitted to {PLACE_NAMES[place]}: {status.run_id}", err=as_json)
    click.echo(f"  {status.link}", err=as_json)
    if wait:
        follow(backend, status.run_id, run_file, place, every_seconds, as_json=as_json)
    elif as_json:
        click.echo(json.dumps(to_plain(status), indent=1))
    else:
        click.echo(f"Next: {status_command(run_file, status.run_id, place)}")
