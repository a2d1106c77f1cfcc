"""The run on Kubeflow Pipelines or Vertex AI that `submit`, `status`, `compile` and `schedule` share."""

import contextlib
import functools
import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detloom.pipelines.command_line.options import FILE, PATH, NumberRange, override_options, read_override_options
from detloom.schemas.errors import ExitCode, InputError
from detloom.schemas.reading.redact import redact
from detloom.schemas.reading.text_file import read_text_file
from detloom.schemas.run_file.run_file import Place, RunFile

if TYPE_CHECKING:
    from detloom.pipelines.backends.backend import Backend
    from detloom.pipelines.backends.compiled_job import CompiledJob

REMOTE_PLACES: tuple[Place, ...] = ("kubeflow", "vertex")
_POLL_SECONDS = 15.0

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


@dataclass(frozen=True)
class RemoteRun:
    """A run file and the backend that runs it."""

    run_file: Path
    run: RunFile
    place: Place

    def connect(self) -> "Backend":
        from detloom.pipelines.backends.backend import connect

        return connect(self.run, self.place)

    def warn(self, backend: "Backend") -> None:
        """Print problems that the cluster's settings cause; ignore a cluster that cannot be asked."""
        from detloom.pipelines.backends.api_errors import ApiError

        with contextlib.suppress(ApiError):
            for warning in backend.warnings(self.run):
                click.echo(f"Warning: {warning}", err=True)

    def read_job(self, job_file: Path | None, *, is_caching: bool) -> "CompiledJob":
        """Compile the job of the run file, or read a job that was compiled before.

        Raises:
            InputError: for a setting that the backend does not support, or a file that is not a job of this pipeline.
        """
        from detloom.components.fingerprints import MAX_JOB_BYTES
        from detloom.pipelines.backends.compiled_job import parse_job, without_cache

        if job_file is None:
            from detloom.pipelines.compile.compile_job import compile_job

            job = parse_job(compile_job(self.run, self.place), self.place, "the compiled job")
        else:
            where = redact(str(job_file))
            job = parse_job(read_text_file(job_file, MAX_JOB_BYTES), self.place, where)
            if job.pipeline_name != self.run.name:
                names = f"the pipeline '{redact(job.pipeline_name)}', but the run file has '{self.run.name}'"
                raise InputError(f"{where}: has {names}; compile the run file.")
        return job if is_caching else replace(job, spec=without_cache(job.spec))

    def follow(self, backend: "Backend", run_id: str, every_seconds: float, *, as_json: bool) -> None:
        """Print the progress of a run until it ends, then exit with its exit code."""
        from detloom.pipelines.backends.backend import follow_run
        from detloom.pipelines.backends.run_status import format_run, to_plain

        try:
            ended = follow_run(backend, run_id, partial(click.echo, err=as_json), every_seconds=every_seconds)
        except KeyboardInterrupt:
            click.echo(f"The run continues; to see it, run: {self.status_command(run_id)}", err=True)
            sys.exit(ExitCode.INTERRUPTED)
        now = datetime.now(timezone.utc)
        click.echo(json.dumps(to_plain(ended), indent=1) if as_json else format_run(ended, now))
        sys.exit(ExitCode.DONE if ended.state == "succeeded" else ExitCode.FAILED)

    def status_command(self, run_id: str) -> str:
        return shlex.join(["detloom", "status", str(self.run_file), run_id, "--runner", self.place])


def remote_run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add RUN_FILE, --runner and --set to a command, which gets them as a `RemoteRun`."""

    @functools.wraps(command)
    def call(run_file: Path, runner: Place | None, settings: tuple[str, ...], **others: Any) -> None:
        command(_read_remote_run(run_file, runner, settings), **others)

    call = click.option(
        "--runner",
        type=click.Choice(REMOTE_PLACES),
        help="The backend. Default: the one that RUN_FILE has a section for.",
    )(override_options(call))
    return click.argument("run_file", type=PATH)(call)


def _read_remote_run(run_file: Path, runner: Place | None, settings: tuple[str, ...]) -> RemoteRun:
    from detloom.schemas.run_file.read_config import read_sections
    from detloom.schemas.run_file.read_run_file import read_run_file

    overrides = read_override_options(settings)
    place = runner
    if place is None:
        sections = read_sections(run_file, overrides)
        places = [each for each in REMOTE_PLACES if getattr(sections, each) is not None]
        if len(places) != 1:
            has = "both" if places else "none"
            raise InputError(f"{run_file}: set --runner; the file has {has} of the sections kubeflow and vertex.")
        place = places[0]
    return RemoteRun(run_file, read_run_file(run_file, overrides=overrides, place=place), place)
