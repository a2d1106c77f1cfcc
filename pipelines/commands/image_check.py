"""`detloom image-check`: check that an image fits a compiled job."""

import sys

import click

from detloom.components.fingerprints import MAX_JOB_BYTES, read_job_code
from detloom.pipelines.command_line.command import command
from detloom.pipelines.command_line.options import json_option
from detloom.pipelines.tfx_line import read_job_lines
from detloom.schemas.errors import ExitCode, InputError


@command(
    "docker run --rm -i --entrypoint detloom registry.example.org/detloom:1 image-check --job - < job.yaml",
    "detloom image-check --json",
)
@click.option("--job", metavar="FILE", help="A compiled job for either backend; - reads standard input.")
@json_option
def image_check(job: str | None, as_json: bool) -> None:
    """Check that an image fits a compiled job.

    Run it in the image. Checks packages, temporary files and devices. With --job, compares the TFX line and the code of
    each task with the job: a container refuses a task compiled with another line or from other code.
    """
    from detloom.pipelines.doctor.check_image import check_image
    from detloom.pipelines.doctor.check_result import format_results

    text = _read_job(job) if job else b""
    results = check_image(read_job_code(text, f"--job {job}") if job else (), read_job_lines(text))
    click.echo(format_results(results, as_json=as_json))
    if any(result.status == "error" for result in results):
        sys.exit(ExitCode.FAILED)


def _read_job(path: str) -> bytes:
    try:
        with click.open_file(path, "rb") as file:
            return file.read(MAX_JOB_BYTES + 1)
    except OSError as error:
        raise InputError(
            f"--job {path}: cannot be read ({error.strerror}); use a file that `detloom compile` wrote."
        ) from None
