"""Options and functions that `submit`, `status`, `compile` and `schedule` share."""

import contextlib
import json
import shlex
import sys
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from detloom.pipelines.commands.options import FILE, NumberRange, read_override_options
from detloom.schemas.errors import ExitCode, InputError
from detloom.schemas.reading.redact import redact
from detloom.schemas.run_file.run_file import Place, RunFile

if TYPE_CHECKING:
    from detloom.pipelines.backends.backend import Backend
    from detloom.pipelines.backends.compiled_job import CompiledJob

REMOTE_PLACES: tuple[Place, ...] = ("kubeflow", "vertex")
_POLL_SECONDS = 15.0

runner_option = click.option(
    "--runner",
    type=click.Choice(REMOTE_PLACES),
    help="The backend. Default: the one that RUN_FILE has a section for.",
)
job_option = click.option(
    "--job",
    "job_file",
    type=FILE,
    metavar="FILE",
    help="Use this output of `detloom compile` instead of compiling RUN_FILE.",
)
wait_option = click.option("--wait", is_flag=True, help="Follow the run until it ends; exit with code 1 if it fails.")
every_option = click.option(
    "--every",
    "every_seconds",
    type=NumberRange(min=0, min_open=True),
    default=_POLL_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="With --wait: time between two requests.",
)


def read_remote_run(run_file: Path, runner: Place | None, settings: tuple[str, ...]) -> tuple[RunFile, Place]:
    """Read the run file for the backend that the run is for.

    Raises:
        InputError: for a mistake in the file, or if the backend is not clear.
    """
    from detloom.schemas.run_file.read_run_file import build_run, load_run_tree, read_run_file

    overrides = read_override_options(settings)
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
    """Compile the job of a run file, or read a job that was compiled before.

    Raises:
        InputError: for a setting that the backend does not support, or a file that is not a job of this pipeline.
    """
    from detloom.pipelines.backends.compiled_job import parse_job, read_job_file

    if job_file is None:
        from detloom.pipelines.compile.compile_job import compile_job

        return parse_job(compile_job(run, place), place, "the compiled job")
    where = redact(str(job_file))
    job = parse_job(read_job_file(job_file), place, where)
    if job.pipeline_name != run.name:
        got = redact(job.pipeline_name)
        raise InputError(f"{where}: has the pipeline '{got}', but the run file has '{run.name}'; compile the run file.")
    return job


def warn(backend: "Backend", run: RunFile) -> None:
    """Print what the cluster's settings make of the run file; a cluster that cannot be asked is no reason to stop."""
    from detloom.pipelines.backends.api_errors import ApiError

    with contextlib.suppress(ApiError):
        for warning in backend.warnings(run):
            click.echo(f"Warning: {warning}", err=True)


def follow(
    backend: "Backend", run_id: str, run_file: Path, place: Place, every_seconds: float, *, as_json: bool = False
) -> None:
    """Print the progress of a run until it ends, then exit with its exit code."""
    from detloom.pipelines.backends.backend import follow_run
    from detloom.pipelines.backends.run_status import format_run, to_plain

    try:
        ended = follow_run(backend, run_id, partial(click.echo, err=as_json), every_seconds=every_seconds)
    except KeyboardInterrupt:
        click.echo(f"The run continues; to see it, run: {status_command(run_file, run_id, place)}", err=True)
        sys.exit(ExitCode.INTERRUPTED)
    click.echo(json.dumps(to_plain(ended), indent=1) if as_json else format_run(ended, datetime.now(timezone.utc)))
    sys.exit(ExitCode.DONE if ended.state == "succeeded" else ExitCode.FAILED)


def status_command(run_file: Path, run_id: str, place: Place) -> str:
    return shlex.join(["detloom", "status", str(run_file), run_id, "--runner", place])
