"""`detloom image-check`: check that an image fits a compiled job.

Inside an image the checks examine the image, outside of one the current installation.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click

from detloom.components.fingerprints import MAX_JOB_BYTES, check_code, package_fingerprint, read_job_code
from detloom.pipelines.command_line.command import command
from detloom.pipelines.command_line.options import json_option
from detloom.pipelines.commands.doctor import (
    TENSORFLOW_PROBE,
    check_packages,
    check_python,
    check_tensorflow,
    check_writable,
)
from detloom.pipelines.commands.findings import Finding, format_findings, run_check, run_probe
from detloom.schemas.errors import ExitCode, InputError

_ENGINES = ("podman", "docker")
_STDIN = "-"
_COMMAND = "image-check"
# Exit codes of both engines that do not come from the command inside the container.
_ENGINE_FAILED, _NOT_EXECUTABLE, _NOT_FOUND = 125, 126, 127


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

    Reports the image's packages, user, folders, devices and package fingerprint. With --job, compares the code of each
    task with the job: a container refuses a task compiled from other code. Without --image, checks the current
    installation.
    """
    text = read_job(job) if job else None
    if run_options and not image:
        raise InputError("--run-option: got an option without --image, allowed: only with --image.")
    if image:
        sys.exit(check_in_container(find_engine(), image, text, run_options, as_json=as_json))
    sys.exit(check_here(text, job or "", as_json=as_json))


def read_job(path: str) -> bytes:
    """Read at most one byte more than the largest allowed job.

    Raises:
        InputError: if the job cannot be read or names no code.
    """
    try:
        with click.open_file(path, "rb") as file:
            text = file.read(MAX_JOB_BYTES + 1)
    except OSError as error:
        raise InputError(
            f"--job {path}: cannot be read ({error.strerror}); use a file that `detloom compile` wrote."
        ) from None
    read_job_code(text, f"--job {path}")
    return text


def check_here(job: bytes | None, name: str, *, as_json: bool) -> int:
    """Print the findings and return the exit code."""
    from detloom.schemas.reading.typed_dict import to_dict

    findings = examine_image(() if job is None else read_job_code(job, name))
    if as_json:
        click.echo(json.dumps([to_dict(finding) for finding in findings], indent=1))
    else:
        click.echo(format_findings(findings))
    return ExitCode.FAILED if any(finding.status == "error" for finding in findings) else ExitCode.DONE


def check_in_container(engine: str, image: str, job: bytes | None, run_options: Sequence[str], *, as_json: bool) -> int:
    """Run the check in the image with the job as standard input; return the exit code of the check.

    Raises:
        InputError: if the container does not start, or contains no detloom.
    """
    if image.startswith("-"):
        raise InputError(f"--image: got {image!r}, allowed: the name of an image.")
    done = subprocess.run(container_command(engine, image, job is not None, run_options, as_json), input=job or b"")
    if done.returncode in (_ENGINE_FAILED, _NOT_EXECUTABLE, _NOT_FOUND):
        raise InputError(
            f"--image {image}: {engine} could not run detloom in it (exit code {done.returncode}, see above); "
            "use an image that `make image` built or that can be pulled."
        )
    return done.returncode


def container_command(
    engine: str, image: str, has_job: bool, run_options: Sequence[str], as_json: bool
) -> tuple[str, ...]:
    """Return the engine's command line. It replaces the entry point: a Beam worker's is Beam's boot program."""
    command = (engine, "run", "--rm", "--interactive", *run_options, "--entrypoint", "detloom", image, _COMMAND)
    return (*command, *(("--job", _STDIN) if has_job else ()), *(("--json",) if as_json else ()))


def find_engine() -> str:
    """Return podman if it is installed, otherwise docker.

    Raises:
        InputError: if neither is installed.
    """
    for engine in _ENGINES:
        if shutil.which(engine):
            return engine
    raise InputError(
        f"--image: found no {' or '.join(_ENGINES)} on the PATH; install one of them, or run "
        f"`detloom {_COMMAND}` in a container of the image."
    )


# Paths set by the Dockerfile.
IMAGE_FOLDER = Path("/opt/detloom")
BEAM_BOOT = Path("/opt/apache/beam/boot")
LIBTPU = Path("/lib/libtpu.so")
# The launcher of Kubeflow Pipelines copies between these folders and the object store: kubeflow/pipelines,
# backend/src/v2/compiler/argocompiler/container.go.
STORAGE_FOLDERS = ("/gcs", "/minio", "/s3")
_SHOWN_PACKAGES = ("tfx", "tensorflow", "keras", "apache-beam", "ml-metadata", "tensorflow-data-validation", "kfp")


def examine_image(job_code: Sequence[str] = ()) -> tuple[Finding, ...]:
    """Run all checks; the duration is mostly the import time of TensorFlow.

    Args:
        job_code: the code of the tasks of a compiled job; code that differs here is an error.
    """
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("code", lambda: check_job_code(job_code)),
        ("wheel", check_wheel),
        ("platform", check_platform),
        ("Python", check_python),
        ("versions", check_versions),
        ("packages", check_packages),
        ("constraints", check_pins),
        ("user", check_user),
        ("folders", check_folders),
        ("TensorFlow", lambda: check_tensorflow(run_probe(TENSORFLOW_PROBE))),
        ("TPU", check_tpu),
        ("Beam boot program", check_beam),
    ]
    return tuple(finding for name, check in checks for finding in run_check(name, check))


def check_job_code(job_code: Sequence[str] = ()) -> Iterator[Finding]:
    """Compare this code with the code that the tasks were compiled for, as the container's entrypoint does."""
    package = f"package {package_fingerprint()}"
    wrong = []
    for wanted in job_code:
        try:
            check_code(wanted)
        except InputError:
            wrong.append(wanted)
    if not wrong:
        same = f", {len(job_code)} tasks have the code of the job" if job_code else ""
        yield Finding(name="code", status="ok", found=package + same)
        return
    yield Finding(
        name="code",
        status="error",
        found=f"{package}, {len(wrong)} of {len(job_code)} tasks have other code",
        wanted=", ".join(wrong),
        next_step="compile the job again with this code, or build the image from the job's code",
    )


def check_wheel() -> Iterator[Finding]:
    """Report the wheel that is installed; the image build makes it together with the fingerprint."""
    wheels = sorted((IMAGE_FOLDER / "dist").glob("*.whl"))
    found = ", ".join(str(wheel) for wheel in wheels)
    yield Finding(name="wheel", status="ok", found=found or "none; this image was not built with detloom's Dockerfile")


def check_platform() -> Iterator[Finding]:
    """Report distribution, processor, C library and kernel."""
    try:
        system = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        system = "unknown distribution"
    library = " ".join(platform.libc_ver())
    found = f"{system}, {platform.machine()}, {library}, {platform.system()} {platform.release()}"
    yield Finding(name="platform", status="ok", found=found)


def check_versions() -> Iterator[Finding]:
    """Report the package versions that limit what a compiled job may request."""
    from detloom.pipelines.commands.installed_packages import read_installed

    packages = read_installed()
    shown = (*_SHOWN_PACKAGES, *sorted(name for name in packages if name in ("tensorflow-tpu", "nvidia-cudnn-cu12")))
    found = (f"{name} {packages[name].version if name in packages else 'missing'}" for name in shown)
    yield Finding(name="versions", status="ok", found=", ".join(found))


def check_pins() -> Iterator[Finding]:
    """Check the installed versions against the constraints file of the image; report nothing outside of an image."""
    from detloom.pipelines.commands.installed_packages import differences_from_pins, read_installed

    for file in sorted((IMAGE_FOLDER / "constraints").glob("*.txt")):
        differences = differences_from_pins(read_installed(), file.read_text(encoding="utf-8"), may_lack=True)
        yield Finding(
            name="constraints",
            status="error" if differences else "ok",
            found=f"other versions: {', '.join(differences)}" if differences else f"the versions of {file.name}",
            wanted=f"the versions of {file}",
            next_step="build the image again without installing other packages" if differences else "",
        )


def check_user() -> Iterator[Finding]:
    """Report user id, name and groups; only Beam's workers need root."""
    user, groups = os.getuid(), sorted({os.getgid(), *os.getgroups()})
    found = f"{user} ({os.environ.get('USER') or 'no name'}), groups {', '.join(map(str, groups))}"
    is_right = user != 0 or BEAM_BOOT.exists() or not IMAGE_FOLDER.exists()
    yield Finding(
        name="user",
        status="ok" if is_right else "warning",
        found=found,
        wanted="another user than root",
        next_step="" if is_right else "build the image without RUN_AS=0, unless your platform demands root",
    )


def check_folders() -> Iterator[Finding]:
    """Temporary files are needed; home and the copies of the object store may be mounted later, so they only warn."""
    yield from check_writable("temporary files", tempfile.gettempdir())
    for name, folder in (("home", str(Path.home())), *(("storage", folder) for folder in STORAGE_FOLDERS)):
        if name == "home" or os.path.isdir(folder):
            for finding in check_writable(name, folder):
                warning = replace(finding, status="warning", next_step="mount a folder there that this user can write")
                yield warning if finding.status == "error" else finding


def check_tpu() -> Iterator[Finding]:
    """Devices of a TPU VM, the library that drives them, and a TensorFlow built for it."""
    from detloom.pipelines.commands.installed_packages import read_installed

    devices = [*sorted(Path("/dev").glob("accel[0-9]*")), *sorted(Path("/dev/vfio").glob("[0-9]*"))]
    build = read_installed().get("tensorflow-tpu")
    parts = [
        f"devices {', '.join(map(str, devices))}" if devices else "no devices",
        f"tensorflow-tpu {build.version}" if build else "no TPU build of TensorFlow",
        str(LIBTPU) if LIBTPU.exists() else "no libtpu.so",
    ]
    lacks = bool(devices) and not (build and LIBTPU.exists())
    yield Finding(
        name="TPU",
        status="warning" if lacks else "ok",
        found=", ".join(parts),
        wanted="TensorFlow's TPU build and libtpu.so beside the devices",
        next_step="build with ACCELERATOR=tpu, then Dockerfile.tpu" if lacks else "",
    )


def check_beam() -> Iterator[Finding]:
    """Beam's workers start with it; no other container does."""
    there = f"{BEAM_BOOT}: this image can be a Beam worker"
    found = there if os.access(BEAM_BOOT, os.X_OK) else "none: Beam's workers need the Dockerfile's target `beam`"
    yield Finding(name="Beam boot program", status="ok", found=found)
