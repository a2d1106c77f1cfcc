"""`detloom schedule create|list|pause|resume|delete`, on Kubeflow Pipelines and Vertex AI. Imports are late."""

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from detloom.pipelines.config_cli import override_options
from detloom.pipelines.submit_cli import job_option, json_option, read_job, read_remote_run, runner_option
from detloom.schemas.errors import InputError
from detloom.schemas.redact import redact
from detloom.schemas.run_file import Place

if TYPE_CHECKING:
    from detloom.pipelines.backends.run_status import ScheduleStatus

_Command = TypeVar("_Command", bound=Callable[..., Any])
_MAX_NAME = 128  # characters; aiplatform_v1 Schedule.display_name


def _names_a_schedule(command: _Command) -> _Command:
    command = runner_option(override_options(command))
    command = click.argument("name", required=False, metavar="[NAME]")(command)
    return click.argument("run_file", type=click.Path(path_type=Path))(command)


@click.group()
def schedule() -> None:
    """Start runs by themselves, on Kubeflow Pipelines or Vertex AI, as `schedule` in a run file says.

    \b
    schedule: {cron: "0 3 * * *", timezone: Europe/Berlin}

    On one machine, without a cluster, `detloom timer` does that.
    """


@schedule.command()
@click.argument("run_file", type=click.Path(path_type=Path))
@runner_option
@job_option
@click.option("--name", default="", metavar="NAME", help="Of the schedule. Default: the pipeline's.")
@click.option("--replace", "is_replacing", is_flag=True, help="Delete the one of that name when the new one is there.")
@override_options
def create(
    run_file: Path,
    runner: Place | None,
    job_file: Path | None,
    name: str,
    is_replacing: bool,
    settings: tuple[str, ...],
    hparams: str,
) -> None:
    """Start a schedule for the pipeline of RUN_FILE, compiled as it is now.

    A later change of the run file or of the package takes effect with --replace. If there is a schedule of that name,
    nothing is done without it.
    """
    from detloom.pipelines.backends.backend import PLACE_NAMES, connect, create_schedule
    from detloom.pipelines.backends.compiled_job import without_cache

    if len(name) > _MAX_NAME or not name.isprintable():
        raise InputError(f"--name: got {redact(repr(name))}, allowed: at most {_MAX_NAME} printable characters.")
    run, place = read_remote_run(run_file, runner, settings, hparams)
    if run.schedule is None:
        raise InputError(f"{run_file}: schedule: the section is missing; it needs cron, such as '0 3 * * *'.")
    job = read_job(run, place, job_file)
    if not run.schedule.caching:
        job = replace(job, spec=without_cache(job.spec))
    created = create_schedule(connect(run, place), job, run.schedule, name or run.name, replace=is_replacing)
    click.echo(f"Created the schedule '{redact(created.name)}' on {PLACE_NAMES[place]}: {created.schedule_id}")
    click.echo(f"  {created.link}")
    click.echo(f"Look at it with: detloom schedule list {shlex.quote(str(run_file))} --runner {place}")


@schedule.command("list")
@click.argument("run_file", type=click.Path(path_type=Path))
@runner_option
@click.option("--all", "is_all", is_flag=True, help="Those of other pipelines too, without their last runs.")
@json_option
@override_options
def list_(
    run_file: Path, runner: Place | None, is_all: bool, as_json: bool, settings: tuple[str, ...], hparams: str
) -> None:
    """List the schedules of RUN_FILE's pipeline: state, next time, last run, id.

    Kubeflow does not tell the next time; it is worked out here from the expression and `kubeflow.schedule_timezone`.
    """
    from detloom.pipelines.backends.backend import connect
    from detloom.pipelines.backends.status_text import format_schedules, to_plain

    run, place = read_remote_run(run_file, runner, settings, hparams)
    backend = connect(run, place)
    found = backend.list_schedules() if is_all else backend.own_schedules()
    if as_json:
        click.echo(json.dumps([to_plain(each) for each in found], indent=1))
    else:
        of = "" if is_all else f" of '{run.name}'"
        click.echo(format_schedules(found) if found else f"No schedules{of} so far.")


@schedule.command()
@_names_a_schedule
def pause(run_file: Path, name: str | None, runner: Place | None, settings: tuple[str, ...], hparams: str) -> None:
    """Start no more runs until it is resumed; runs that have begun go on.

    NAME is a schedule's name or id. Default: the pipeline's.
    """
    _change(run_file, name, runner, settings, hparams, "pause")


@schedule.command()
@_names_a_schedule
def resume(run_file: Path, name: str | None, runner: Place | None, settings: tuple[str, ...], hparams: str) -> None:
    """Start runs again. Whether those that were missed are made up for is what `schedule.catch_up` says.

    NAME is a schedule's name or id. Default: the pipeline's. On Kubeflow, `catch_up` is that of the moment when the
    schedule was created.
    """
    _change(run_file, name, runner, settings, hparams, "resume")


@schedule.command()
@_names_a_schedule
def delete(run_file: Path, name: str | None, runner: Place | None, settings: tuple[str, ...], hparams: str) -> None:
    """Delete a schedule; runs that it started stay.

    NAME is a schedule's name or id. Default: the pipeline's.
    """
    _change(run_file, name, runner, settings, hparams, "delete")


COMMANDS = (schedule,)


def _change(
    run_file: Path, name: str | None, runner: Place | None, settings: tuple[str, ...], hparams: str, change: str
) -> None:
    from detloom.pipelines.backends.backend import connect, find_schedule

    run, place = read_remote_run(run_file, runner, settings, hparams)
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
