"""`detloom schedule create|list|pause|resume|delete`: schedules on Kubeflow Pipelines and Vertex AI."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from detloom.pipelines.commands.exit_codes import end_of_help
from detloom.pipelines.commands.options import PATH, json_option, override_options
from detloom.pipelines.commands.remote_run import job_option, read_job, read_remote_run, runner_option, warn
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import redact
from detloom.schemas.run_file.run_file import Place

if TYPE_CHECKING:
    from detloom.pipelines.backends.run_status import ScheduleStatus

_Command = TypeVar("_Command", bound=Callable[..., Any])
_MAX_NAME = 128  # characters; aiplatform_v1 Schedule.display_name


def _names_a_schedule(command: _Command) -> _Command:
    command = runner_option(override_options(command))
    command = click.argument("name", required=False, metavar="[NAME]")(command)
    return click.argument("run_file", type=PATH)(command)


@click.group(epilog=end_of_help("schedule", "detloom schedule create cells.yaml", "detloom schedule list cells.yaml"))
def schedule() -> None:
    """Manage scheduled runs on Kubeflow Pipelines or Vertex AI.

    The section `schedule` of a run file defines them:

    \b
    schedule: {cron: "0 3 * * *", timezone: Europe/Berlin}

    On one machine without a cluster, use `detloom timer`.
    """


@schedule.command(
    epilog=end_of_help(
        "schedule create",
        "detloom schedule create cells.yaml --runner kubeflow",
        "detloom schedule create cells.yaml --replace",
    )
)
@click.argument("run_file", type=PATH)
@runner_option
@job_option
@click.option("--name", default="", metavar="NAME", help="Name of the schedule. Default: the pipeline's name.")
@click.option(
    "--replace", "is_replacing", is_flag=True, help="Delete a schedule of that name after creating the new one."
)
@override_options
def create(
    run_file: Path,
    runner: Place | None,
    job_file: Path | None,
    name: str,
    is_replacing: bool,
    settings: tuple[str, ...],
) -> None:
    """Create a schedule for the pipeline of a run file.

    The pipeline is compiled in its current state. Later changes of the run file or of the package take effect with
    --replace. Without --replace, an existing schedule of that name is an error.
    """
    from detloom.pipelines.backends.backend import PLACE_NAMES, connect, create_schedule
    from detloom.pipelines.backends.compiled_job import without_cache
    from detloom.pipelines.local.console import format_next

    if len(name) > _MAX_NAME or not name.isprintable():
        raise InputError(f"--name: got {redact(repr(name))}, allowed: at most {_MAX_NAME} printable characters.")
    run, place = read_remote_run(run_file, runner, settings)
    if run.schedule is None:
        raise InputError(f"{run_file}: schedule: the section is missing; it needs cron, such as '0 3 * * *'.")
    job = read_job(run, place, job_file)
    if not run.schedule.caching:
        job = replace(job, spec=without_cache(job.spec))
    backend = connect(run, place)
    warn(backend, run)
    created = create_schedule(backend, job, run.schedule, name or run.name, replace=is_replacing)
    click.echo(f"Created the schedule '{redact(created.name)}' on {PLACE_NAMES[place]}: {created.schedule_id}")
    click.echo(f"  {created.link}")
    click.echo(format_next("detloom", "schedule", "list", run_file, "--runner", place))


@schedule.command("list", epilog=end_of_help("schedule list", "detloom schedule list cells.yaml --json"))
@click.argument("run_file", type=PATH)
@runner_option
@click.option("--all", "is_all", is_flag=True, help="List schedules of other pipelines too, without their last runs.")
@json_option
@override_options
def list_(run_file: Path, runner: Place | None, is_all: bool, as_json: bool, settings: tuple[str, ...]) -> None:
    """List the schedules of a pipeline.

    The list has state, next time, last run and id. Kubeflow does not report the next time; it is computed from the
    expression and `kubeflow.schedule_timezone`.
    """
    from detloom.pipelines.backends.backend import connect
    from detloom.pipelines.backends.run_status import format_schedules, to_plain

    run, place = read_remote_run(run_file, runner, settings)
    backend = connect(run, place)
    found = backend.list_schedules() if is_all else backend.own_schedules()
    if as_json:
        click.echo(json.dumps([to_plain(each) for each in found], indent=1))
    else:
        of = "" if is_all else f" of '{run.name}'"
        click.echo(format_schedules(found) if found else f"No schedules{of} yet.")


@schedule.command(epilog=end_of_help("schedule pause", "detloom schedule pause cells.yaml"))
@_names_a_schedule
def pause(run_file: Path, name: str | None, runner: Place | None, settings: tuple[str, ...]) -> None:
    """Pause a schedule; runs that have started continue.

    NAME is a schedule's name or id. Default: the pipeline's name.
    """
    _change(run_file, name, runner, settings, "pause")


@schedule.command(epilog=end_of_help("schedule resume", "detloom schedule resume cells.yaml"))
@_names_a_schedule
def resume(run_file: Path, name: str | None, runner: Place | None, settings: tuple[str, ...]) -> None:
    """Resume a schedule.

    `schedule.catch_up` decides whether missed runs are started. NAME is a schedule's name or id. Default: the
    pipeline's name. On Kubeflow, the value of `catch_up` is fixed when the schedule is created.
    """
    _change(run_file, name, runner, settings, "resume")


@schedule.command(epilog=end_of_help("schedule delete", "detloom schedule delete cells.yaml cells-nightly"))
@_names_a_schedule
def delete(run_file: Path, name: str | None, runner: Place | None, settings: tuple[str, ...]) -> None:
    """Delete a schedule; the runs that it started remain.

    NAME is a schedule's name or id. Default: the pipeline's name.
    """
    _change(run_file, name, runner, settings, "delete")


def _change(run_file: Path, name: str | None, runner: Place | None, settings: tuple[str, ...], change: str) -> None:
    from detloom.pipelines.backends.backend import connect, find_schedule

    run, place = read_remote_run(run_file, runner, settings)
    backend = connect(run, place)
    found = find_schedule(backend, name or run.name)
    if change == "pause":
        backend.pause_schedule(found.schedule_id)
    elif change == "resume":
        backend.resume_schedule(found.schedule_id, catch_up=run.schedule is not None and run.schedule.catch_up)
    else:
        backend.delete_schedule(found.schedule_id)
    click.echo(_done(found, {"pause": "Paused", "resume": "Resumed", "delete": "Deleted"}[change]))


def _done(found: "ScheduleStatus", done: str) -> str:
    return f"{done} the schedule '{redact(found.name)}' ({found.schedule_id})."
