"""`detloom image-check`: is this image what a compiled job asks for?"""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence

import click

from detloom.schemas.errors import InputError

_ENGINES = ("podman", "docker")
_STDIN = "-"
_COMMAND = "image-check"
# Exit codes of both engines that are not those of the command inside.
_ENGINE_FAILED, _NOT_EXECUTABLE, _NOT_FOUND = 125, 126, 127


@click.command(_COMMAND)
@click.option("--image", help="Run this check in that image, with podman or docker, instead of here.")
@click.option("--job", metavar="FILE", help="A compiled job, for either backend; - reads it from standard input.")
@click.option(
    "--run-option",
    "run_options",
    multiple=True,
    metavar="OPTION",
    help="With --image: an option for `podman run` or `docker run`, such as --gpus=all; may be given several times.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def image_check(image: str | None, job: str | None, run_options: tuple[str, ...], as_json: bool) -> None:
    """Say what an image holds: packages against their pins, user, folders, devices, and the package's fingerprint.

    With --job, compare that fingerprint with the one in the job: a container refuses a job compiled from other code.
    Without --image it looks at the installation that runs it. Exit code 1 if something is wrong.

    \b
    detloom compile run.yaml --runner kubeflow -o job.yaml
    detloom image-check --image REGISTRY/detloom:1 --job job.yaml
    """
    text = read_job(job) if job else None
    if run_options and not image:
        raise InputError("--run-option: got one without --image, allowed: only together with --image.")
    if image:
        sys.exit(check_in_container(find_engine(), image, text, run_options, as_json=as_json))
    sys.exit(check_here(text, job or "", as_json=as_json))


COMMANDS = (image_check,)


def read_job(path: str) -> bytes:
    """Not more of it than tells that it is too large.

    Raises:
        InputError: if it cannot be read, or holds no fingerprint.
    """
    from detloom.pipelines.job_fingerprint import MAX_JOB_BYTES, read_job_fingerprints

    try:
        with click.open_file(path, "rb") as file:
            text = file.read(MAX_JOB_BYTES + 1)
    except OSError as error:
        raise InputError(
            f"--job {path}: cannot be read ({error.strerror}); name a file of `detloom compile`."
        ) from None
    read_job_fingerprints(text, f"--job {path}")
    return text


def check_here(job: bytes | None, name: str, *, as_json: bool) -> int:
    """Print the findings; returns the exit code."""
    from detloom.pipelines.doctor import format_findings
    from detloom.pipelines.image_check import examine_image
    from detloom.pipelines.job_fingerprint import read_job_fingerprints
    from detloom.schemas.typed_dict import to_dict

    findings = examine_image(() if job is None else read_job_fingerprints(job, name))
    if as_json:
        click.echo(json.dumps([to_dict(finding) for finding in findings], indent=1))
    else:
        click.echo(format_findings(findings))
    return int(any(finding.status == "error" for finding in findings))


def check_in_container(engine: str, image: str, job: bytes | None, run_options: Sequence[str], *, as_json: bool) -> int:
    """Run the check in the image, with the job as its standard input; returns the exit code of the check.

    Raises:
        InputError: if the container does not start, or holds no detloom.
    """
    if image.startswith("-"):
        raise InputError(f"--image: got {image!r}, allowed: the name of an image.")
    done = subprocess.run(container_command(engine, image, job is not None, run_options, as_json), input=job or b"")
    if done.returncode in (_ENGINE_FAILED, _NOT_EXECUTABLE, _NOT_FOUND):
        raise InputError(
            f"--image {image}: {engine} could not run detloom in it (exit code {done.returncode}, its reason stands "
            "above); name an image that `make image` built or that can be pulled."
        )
    return done.returncode


def container_command(
    engine: str, image: str, has_job: bool, run_options: Sequence[str], as_json: bool
) -> tuple[str, ...]:
    """The entry point is replaced: that of a Beam worker is Beam's boot program."""
    command = (engine, "run", "--rm", "--interactive", *run_options, "--entrypoint", "detloom", image, _COMMAND)
    return (*command, *(("--job", _STDIN) if has_job else ()), *(("--json",) if as_json else ()))


def find_engine() -> str:
    """podman, or docker where there is no podman.

    Raises:
        InputError: if there is neither.
    """
    for engine in _ENGINES:
        if shutil.which(engine):
            return engine
    raise InputError(
        f"--image: got no {' or '.join(_ENGINES)} on the PATH, allowed: a machine with one of them; or run "
        f"`detloom {_COMMAND}` in a container of the image yourself."
    )
