"""`detloom schedule create|list|pause|resume|delete`: schedules on Kubeflow Pipelines and Vertex AI."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from detloom.pipelines.command_line.command import command
from detloom.pipelines.command_line.options import json_option
from detloom.pipelines.command_line.remote_run import RemoteRun, job_option, remote_run_options
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import redact

if TYPE_CHECKING:
    from detloom.pipelines.backends.backend import Backend
    from detloom.pipelines.backends.run_status import ScheduleStatus

_MAX_NAME = 128  # characters; aiplatform_v1 Schedule.display_name


@command("detloom schedule create cells.yaml", "detloom schedule list cells.yaml", cls=click.Group)
def schedule() -> None:
    """Manage scheduled runs on Kubeflow Pipelines or Vertex AI.

    The section `schedule` of a run file defines them:

    \b
    schedule: {cron: "0 3 * * *", timezone: Europe/Berlin}

    On one machine without a cluster, use `detloom timer`.
    """


@command(
    "detloom schedule create cells.yaml --runner kubeflow",
    "detloom schedule create cells.yaml --replace",
    group=schedule,
)
@remote_run_options
@job_option
@click.option("--name", default="", metavar="NAME", help="Name of the schedule. Default: the pipeline's name.")
@click.option(
    "--replace", "is_replacing", is_flag=True, help="Delete a schedule of that name after creating the new one."
)
def create(remote: RemoteRun, job_file: Path | None, name: str, is_replacing: bool) -> None:
    """Create a schedule for the pipeline of a run file.

    The pipeline is compiled in its current state. Later changes of the run file or of the package take effect with
    --replace. Without --replace, an existing schedule of that name is an error.
    """
    from detloom.pipelines.backends.backend import PLACE_NAMES, create_schedule
    from detloom.pipelines.local.console import format_next

    if len(name) > _MAX_NAME or not name.isprintable():
        raise InputError(f"--name: got {redact(repr(name))}, allowed: at most {_MAX_NAME} printable characters.")
    run, place = remote.run, remote.place
    if run.schedule is None:
        raise InputError(f"{remote.run_file}: the section schedule is missing; it needs cron, such as '0 3 * * *'.")
    job = remote.read_job(job_file, is_caching=run.schedule.caching)
    backend = remote.connect()
    remote.warn(backend)
    created = create_schedule(backend, job, run.schedule, name or run.name, replace=is_replacing)
    click.echo(f"Created the schedule '{redact(created.name)}' on {PLACE_NAMES[place]}: {created.schedule_id}")
    click.echo(f"  {created.link}")
    click.echo(format_next("detloom", "schedule", "list", remote.run_file, "--runner", place))


@command("detloom schedule list cells.yaml --json", name="list", group=schedule)
@remote_run_options
@click.option("--all", "is_all", is_flag=True, help="List schedules of other pipelines too, without their last runs.")
@json_option
def list_(remote: RemoteRun, is_all: bool, as_json: bool) -> None:
    """List the schedules of a pipeline.

    The list has state, next time, last run and id. Kubeflow does not report the next time.
    """
    from detloom.pipelines.backends.run_status import format_schedules, to_plain

    backend = remote.connect()
    found = backend.list_schedules() if is_all else backend.own_schedules()
    if as_json:
        click.echo(json.dumps([to_plain(each) for each in found], indent=1))
    else:
        of = "" if is_all else f" of '{remote.run.name}'"
        click.echo(format_schedules(found) if found else f"No schedules{of} yet.")


_NAME = click.argument("name", required=False, metavar="[NAME]")


@command("detloom schedule pause cells.yaml", group=schedule)
@remote_run_options
@_NAME
def pause(remote: RemoteRun, name: str | None) -> None:
    """Pause a schedule; runs that have started continue.

    NAME is a schedule's name or id. Default: the pipeline's name.
    """
    backend, found = _find_schedule(remote, name)
    backend.pause_schedule(found.schedule_id)
    _print_done("Paused", found)


@command("detloom schedule resume cells.yaml", group=schedule)
@remote_run_options
@_NAME
def resume(remote: RemoteRun, name: str | None) -> None:
    """Resume a schedule.

    `schedule.catch_up` decides whether missed runs are started. NAME is a schedule's name or id. Default: the
    pipeline's name. On Kubeflow, the value of `catch_up` is fixed when the schedule is created.
    """
    backend, found = _find_schedule(remote, name)
    settings = remote.run.schedule
    backend.resume_schedule(found.schedule_id, catch_up=settings is not None and settings.catch_up)
    _print_done("Resumed", found)


@command("detloom schedule delete cells.yaml cells-nightly", group=schedule)
@remote_run_options
@_NAME
def delete(remote: RemoteRun, name: str | None) -> None:
    """Delete a schedule; the runs that it started remain.

    NAME is a schedule's name or id. Default: the pipeline's name.
    """
    backend, found = _find_schedule(remote, name)
    backend.delete_schedule(found.schedule_id)
    _print_done("Deleted", found)


def _find_schedule(remote: RemoteRun, name: str | None) -> "tuple[Backend, ScheduleStatus]":
    from detloom.pipelines.backends.backend import find_schedule

    backend = remote.connect()
    return backend, find_schedule(backend, name or remote.run.name)


def _print_done(done: str, found: "ScheduleStatus") -> None:
    click.echo(f"{done} the schedule '{redact(found.name)}' ({found.schedule_id}).")
