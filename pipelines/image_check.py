"""What an image holds: looked at from the inside. Works outside of one too, about the installation that runs it."""

import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from detloom.pipelines.doctor import (
    TENSORFLOW_PROBE,
    Finding,
    check_packages,
    check_python,
    check_tensorflow,
    check_writable,
    guarded,
    run_probe,
)
from detloom.pipelines.package_fingerprint import package_fingerprint

# Where the Dockerfile puts things.
IMAGE_FOLDER = Path("/opt/detloom")
BEAM_BOOT = Path("/opt/apache/beam/boot")
LIBTPU = Path("/lib/libtpu.so")
# Where the launcher of Kubeflow Pipelines copies from and to the object store: kubeflow/pipelines,
# backend/src/v2/compiler/argocompiler/container.go.
STORAGE_FOLDERS = ("/gcs", "/minio", "/s3")
_SHOWN_PACKAGES = ("tfx", "tensorflow", "keras", "apache-beam", "ml-metadata", "tensorflow-data-validation", "kfp")


def examine_image(job_fingerprints: Sequence[str] = ()) -> tuple[Finding, ...]:
    """Look at everything; takes as long as importing TensorFlow does.

    Args:
        job_fingerprints: those of a compiled job; where one differs from this package's, that is an error.
    """
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("package fingerprint", lambda: check_fingerprint(package_fingerprint(), job_fingerprints)),
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
    return tuple(finding for name, check in checks for finding in guarded(name, check))


def check_fingerprint(ours: str, job_fingerprints: Sequence[str] = ()) -> Iterator[Finding]:
    """Is this the code that the job was compiled for? The container's entrypoint asks the same before it starts."""
    wanted = ", ".join(job_fingerprints)
    is_right = set(job_fingerprints) <= {ours}
    yield Finding(
        name="package fingerprint",
        status="ok" if is_right else "error",
        found=ours + (", as in the job" if is_right and job_fingerprints else ""),
        wanted=f"{wanted}, those of the job" if len(job_fingerprints) > 1 else f"{wanted}, that of the job",
        next_step="" if is_right else "compile the job again with this code, or build the image from the job's",
    )


def check_wheel() -> Iterator[Finding]:
    """The wheel that goes to Beam's workers; a new fingerprint needs a new one, and both come from one build."""
    wheels = sorted((IMAGE_FOLDER / "dist").glob("*.whl"))
    found = ", ".join(str(wheel) for wheel in wheels)
    yield Finding(name="wheel", status="ok", found=found or "none, so this is not an image of detloom's Dockerfile")


def check_platform() -> Iterator[Finding]:
    """Distribution, processor, C library and kernel."""
    try:
        system = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        system = "unknown distribution"
    library = " ".join(platform.libc_ver())
    found = f"{system}, {platform.machine()}, {library}, {platform.system()} {platform.release()}"
    yield Finding(name="platform", status="ok", found=found)


def check_versions() -> Iterator[Finding]:
    """Those that decide what a compiled job may ask for."""
    from detloom.pipelines.installed_packages import read_installed

    packages = read_installed()
    shown = (*_SHOWN_PACKAGES, *sorted(name for name in packages if name in ("tensorflow-tpu", "nvidia-cudnn-cu12")))
    found = (f"{name} {packages[name].version if name in packages else 'missing'}" for name in shown)
    yield Finding(name="versions", status="ok", found=", ".join(found))


def check_pins() -> Iterator[Finding]:
    """Installed versions against the constraints file that the image was built with; nothing outside of an image."""
    from detloom.pipelines.installed_packages import differences_from_pins, read_installed

    for file in sorted((IMAGE_FOLDER / "constraints").glob("*.txt")):
        differences = differences_from_pins(read_installed(), file.read_text(encoding="utf-8"), may_lack=True)
        yield Finding(
            name="constraints",
            status="error" if differences else "ok",
            found=f"other versions: {', '.join(differences)}" if differences else f"the versions of {file.name}",
            wanted=f"the versions of {file}",
            next_step="build the image again without other installations in it" if differences else "",
        )


def check_user() -> Iterator[Finding]:
    """Number, name and groups; only Beam's workers need root."""
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
    from detloom.pipelines.installed_packages import read_installed

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
