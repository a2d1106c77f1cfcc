"""`detloom submit` and `detloom status`: runs on Kubeflow Pipelines and Vertex AI. Imports are late."""

import json
import shlex
import sys
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from detloom.pipelines.config_cli import override_options, read_override_options
from detloom.pipelines.number_range import NumberRange
from detloom.schemas.errors import InputError
from detloom.schemas.redact import redact
from detloom.schemas.run_file import Place, RunFile

if TYPE_CHECKING:
    from detloom.pipelines.backends.backend import Backend
    from detloom.pipelines.backends.compiled_job import CompiledJob

REMOTE_PLACES: tuple[Place, ...] = ("kubeflow", "vertex")
_POLL_SECONDS = 15.0
_MAX_LISTED = 200
_INTERRUPTED = 130  # exit code of a command that Ctrl-C ended

runner_option = click.option(
    "--runner",
    type=click.Choice(REMOTE_PLACES),
    help="Where. Default: the one of these that RUN_FILE has a section for.",
)
job_option = click.option(
    "--job",
    "job_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="What `detloom compile` wrote, instead of compiling RUN_FILE now.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
_WAIT = click.option("--wait", is_flag=True, help="Follow it until it ends; exit code 1 unless it succeeds.")
_EVERY = click.option(
    "--every",
    "every_seconds",
    type=NumberRange(min=0, min_open=True),
    default=_POLL_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="With --wait: how often to ask.",
)


@click.command()
@click.argument("run_file", type=click.Path(path_type=Path))
@runner_option
@job_option
@click.option("--name", default="", metavar="NAME", help="Of the run. Default: the pipeline's, with the time.")
@click.option("--no-cache", is_flag=True, help="Answer no task from the cache. Default: those that are unchanged.")
@_WAIT
@_EVERY
@override_options
def submit(
    run_file: Path,
    runner: Place | None,
    job_file: Path | None,
    name: str,
    no_cache: bool,
    wait: bool,
    every_seconds: float,
    settings: tuple[str, ...],
    hparams: str,
) -> None:
    """Run the pipeline of RUN_FILE on Kubeflow Pipelines or Vertex AI.

    \b
    detloom submit cells.yaml --runner vertex --wait

    Prints the run's id and its page. Kubeflow is asked with the token that `kubeflow.token` names, Vertex AI with
    Application Default Credentials. A run of one name is submitted once: if the command was cut off, repeat it with the
    same --name.
    """
    from detloom.pipelines.backends.backend import PLACE_NAMES, connect, submit_once
    from detloom.pipelines.backends.compiled_job import check_run_name, new_run_name, without_cache

    if name:
        check_run_name(name)
    run, place = read_remote_run(run_file, runner, settings, hparams)
    job = read_job(run, place, job_file)
    if no_cache:
        job = replace(job, spec=without_cache(job.spec))
    backend = connect(run, place)
    status = submit_once(backend, job, name or new_run_name(run.name), is_new_name=not name)
    click.echo(f"Submitted to {PLACE_NAMES[place]}: {status.run_id}")
    click.echo(f"  {status.link}")
    if wait:
        _follow(backend, status.run_id, run_file, place, every_seconds)
    else:
        click.echo(f"Look at it with: {_status_command(run_file, status.run_id, place)}")


@click.command()
@click.argument("run_file", type=click.Path(path_type=Path))
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
@_WAIT
@_EVERY
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
    hparams: str,
) -> None:
    """Show the latest runs of RUN_FILE's pipeline on Kubeflow Pipelines or Vertex AI, or the tasks of one.

    \b
    detloom status cells.yaml --runner vertex
    detloom status cells.yaml cells-20260131-030000-1a2b3c4d --runner vertex

    RUN_ID is what `detloom submit` and the list print; a run's name does as well. Runs that a schedule started are
    listed, too. With --wait and --json, the lines before the end go to standard error.
    """
    from detloom.pipelines.backends.backend import connect
    from detloom.pipelines.backends.status_text import format_run, format_runs, to_plain

    if wait and not run_id:
        raise InputError("--wait: got no RUN_ID to wait for; `detloom status RUN_FILE` lists them.")
    run, place = read_remote_run(run_file, runner, settings, hparams)
    backend = connect(run, place)
    now = datetime.now(timezone.utc)
    if run_id and wait:
        _follow(backend, run_id, run_file, place, every_seconds, as_json=as_json)
    elif run_id:
        found = backend.get_run(run_id)
        click.echo(json.dumps(to_plain(found), indent=1) if as_json else format_run(found, now))
    else:
        runs = backend.latest_runs(limit)
        if as_json:
            click.echo(json.dumps([to_plain(each) for each in runs], indent=1))
        else:
            click.echo(format_runs(runs, now) if runs else f"No runs of '{run.name}' so far.")


COMMANDS = (submit, status)


def read_remote_run(
    run_file: Path, runner: Place | None, settings: tuple[str, ...], hparams: str
) -> tuple[RunFile, Place]:
    """The run file as it is for the backend that it is to run on.

    Raises:
        InputError: for a mistake in it, and if it does not say which backend.
    """
    from detloom.schemas.read_run_file import build_run, load_run_tree, read_run_file

    overrides = read_override_options(settings, hparams)
    place = runner
    if place is None:
        sections = build_run(load_run_tree(run_file, overrides)[0])
        places = [each for each in REMOTE_PLACES if getattr(sections, each) is not None]
        if len(places) != 1:
            has = "both" if places else "none"
            raise InputError(
                f"{run_file}: --runner is missing, and the file has {has} of the sections kubeflow, vertex."
            )
        place = places[0]
    return read_run_file(run_file, overrides=overrides, place=place), place


def read_job(run: RunFile, place: Place, job_file: Path | None) -> "CompiledJob":
    """The compiled job of a run file, or the one that was compiled before.

    Raises:
        InputError: for what the backend cannot do, and for a file that is no job of this pipeline.
    """
    from detloom.pipelines.backends.compiled_job import parse_job, read_job_file

    if job_file is None:
        from detloom.pipelines.compile.compile_job import compile_job

        return parse_job(compile_job(run, place), place, "the compiled job")
    where = redact(str(job_file))
    job = parse_job(read_job_file(job_file), place, where)
    if job.pipeline_name != run.name:
        got = redact(job.pipeline_name)
        raise InputError(f"{where}: is the pipeline '{got}', but the run file's is '{run.name}'; compile that one.")
    return job


def _follow(
    backend: "Backend", run_id: str, run_file: Path, place: Place, every_seconds: float, *, as_json: bool = False
) -> None:
    """Print what becomes of a run; ends the process with its exit code."""
    from detloom.pipelines.backends.follow_run import follow_run
    from detloom.pipelines.backends.status_text import format_run, to_plain

    try:
        ended = follow_run(backend, run_id, partial(click.echo, err=as_json), every_seconds=every_seconds)
    except KeyboardInterrupt:
        click.echo(f"The run goes on; look at it with: {_status_command(run_file, run_id, place)}", err=True)
        sys.exit(_INTERRUPTED)
    click.echo(json.dumps(to_plain(ended), indent=1) if as_json else format_run(ended, datetime.now(timezone.utc)))
    sys.exit(0 if ended.state == "succeeded" else 1)


def _status_command(run_file: Path, run_id: str, place: Place) -> str:
    return shlex.join(["detloom", "status", str(run_file), run_id, "--runner", place])
