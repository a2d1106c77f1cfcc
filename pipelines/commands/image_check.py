"""`detloom image-check`: check that an image fits a compiled job."""

import subprocess
import sys

import click

from detloom.components.fingerprints import MAX_JOB_BYTES, read_job_code
from detloom.pipelines.command_line.command import command
from detloom.pipelines.command_line.options import json_option
from detloom.schemas.errors import ExitCode, InputError

# Exit codes of podman and docker: the engine failed, or the command is not executable or missing.
_NOT_STARTED = (125, 126, 127)


@command("detloom image-check --image registry.example.org/detloom:1 --job job.yaml", "detloom image-check --json")
@click.option(
    "--image", help="Run the check in this image with podman or docker. Default: check the current installation."
)
@click.option("--job", metavar="FILE", help="A compiled job for either backend; - reads standard input.")
@click.option(
    "--run-option",
    "run_options",
    multiple=True,
    metavar="OPTION",
    help="With --image: an option for `podman run` or `docker run`, such as --gpus=all; can be repeated.",
)
@json_option
def image_check(image: str | None, job: str | None, run_options: tuple[str, ...], as_json: bool) -> None:
    """Check that an image fits a compiled job.

    Checks the image's packages, temporary files and devices. With --job, compares the code of each task with the job: a
    container refuses a task compiled from other code. Without --image, checks the current installation.
    """
    from detloom.pipelines.doctor.check_image import check_image, container_command, find_engine
    from detloom.pipelines.doctor.check_result import format_results

    text = _read_job(job) if job else None
    if run_options and not image:
        raise InputError("--run-option: got an option without --image, allowed: only with --image.")
    if image and image.startswith("-"):
        raise InputError(f"--image: got {image!r}, allowed: the name of an image.")
    if not image:
        results = check_image(() if text is None else read_job_code(text, job or ""))
        click.echo(format_results(results, as_json=as_json))
        sys.exit(ExitCode.FAILED if any(result.status == "error" for result in results) else ExitCode.DONE)
    engine = find_engine()
    done = subprocess.run(container_command(engine, image, text is not None, run_options, as_json), input=text or b"")
    if done.returncode in _NOT_STARTED:
        raise InputError(
            f"--image {image}: {engine} could not run detloom in it (exit code {done.returncode}, see above); "
            "use an image that `make image` built or that can be pulled."
        )
    sys.exit(done.returncode)


def _read_job(path: str) -> bytes:
    """Read at most one byte more than the largest allowed job; InputError if it cannot be read or names no code."""
    try:
        with click.open_file(path, "rb") as file:
            text = file.read(MAX_JOB_BYTES + 1)
    except OSError as error:
        raise InputError(
            f"--job {path}: cannot be read ({error.strerror}); use a file that `detloom compile` wrote."
        ) from None
    read_job_code(text, f"--job {path}")
    return text
