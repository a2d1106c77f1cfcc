"""`detloom doctor`: find what would prevent a run on this machine, in this Python or in a run's folders.

The checks cannot crash the command: TensorFlow and TFX are imported in subprocesses with a time limit, and a check that
fails becomes a finding. The only write is a test file in each folder of the run, which is removed again.
"""

import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import click

from detloom.pipelines.command_line.command import command
from detloom.pipelines.command_line.options import PATH, json_option
from detloom.pipelines.commands.doctor_accelerator import check_accelerator
from detloom.pipelines.commands.doctor_data import check_data, check_data_sample
from detloom.pipelines.commands.findings import Finding, Probe, format_findings, run_check, run_probe
from detloom.schemas.errors import ExitCode
from detloom.schemas.reading.redact import redact
from detloom.schemas.run_file.push import is_remote
from detloom.schemas.run_file.run_file import RunFile

if TYPE_CHECKING:
    from detloom.pipelines.commands.installed_packages import Packages
    from detloom.trainer_module.accelerators.chips import Accelerator

_MIN_DISK_BYTES = 5e9  # the environment is 3.2 GB, a run on a small data set writes less than 1 GB
_MIN_MEMORY_BYTES = 4e9  # training FPNLite at 320 x 320, batch 8, used 2.7 GB; TFX and Beam add to that
_GLIBC_OF_LINE = {"1.16": (2, 17), "1.21": (2, 38)}  # required by the wheels of TFDV and ML Metadata

TENSORFLOW_PROBE = """
import json, tensorflow as tf
devices = [device.name.removeprefix("/physical_device:") for device in tf.config.list_physical_devices()]
print(json.dumps({"version": tf.__version__, "devices": devices}))
"""
_TFX_PROBE = "import json, tfx.v1 as tfx; print(json.dumps({'version': tfx.__version__}))"


_EXAMPLES = ("detloom doctor", "detloom doctor cells.yaml --json", "detloom doctor cells.yaml --accelerator tpu-v5e-8")


@command(*_EXAMPLES)
@click.argument("run_file", required=False, type=PATH)
@click.option(
    "--accelerator",
    metavar="NAME",
    help="Check the training step of RUN_FILE for devices that this machine does not have, such as tpu-v5e-8 or "
    "gpu-h100-8: shapes, memory, padding, shortest time, images per second. Takes some minutes.",
)
@json_option
def doctor(run_file: Path | None, accelerator: str | None, as_json: bool) -> None:
    """Find problems that would stop a run.

    Checks packages, Python, glibc, disk, memory and devices. With RUN_FILE, also its folders, and a few dozen records
    of its data as ingestion does.
    """
    from detloom.pipelines.commands.doctor_accelerator import require_run
    from detloom.schemas.reading.typed_dict import to_dict
    from detloom.schemas.run_file.read_run_file import read_run_file
    from detloom.trainer_module.accelerators.chips import parse_accelerator

    run = read_run_file(run_file) if run_file else None
    devices = parse_accelerator(accelerator) if accelerator else None
    if devices is not None:
        run = require_run(run)
    click.echo("Checking; the imports of TensorFlow and TFX take up to a minute ...", err=True)
    findings = examine(run, devices)
    if as_json:
        click.echo(json.dumps([to_dict(finding) for finding in findings], indent=1))
    else:
        click.echo(format_findings(findings))
    if any(finding.status == "error" for finding in findings):
        sys.exit(ExitCode.FAILED)
    if not as_json:
        from detloom.pipelines.local.console import format_next  # late: a broken installation may lack its imports

        click.echo(format_next("detloom", *(("run", run_file) if run_file else ("demo",))))


def examine(run: RunFile | None = None, accelerator: "Accelerator | None" = None) -> tuple[Finding, ...]:
    """Run all checks; without a run, check the default workspace and no data.

    The duration is mostly the import time of TFX.
    """
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("Python", check_python),
        ("packages", check_packages),
        ("glibc", check_glibc),
        ("TensorFlow", lambda: check_tensorflow(run_probe(TENSORFLOW_PROBE))),
        ("TFX", lambda: check_tfx(run_probe(_TFX_PROBE))),
        ("memory", check_memory),
        ("CPUs", check_cpus),
    ]
    workspace = Path(run.workspace if run else "detloom_runs").absolute()
    disks = {"disk of the workspace": workspace, "disk of temporary files": Path(tempfile.gettempdir())}
    checks += [(name, partial(check_disk, name, path)) for name, path in disks.items()]
    folders = {"workspace": str(workspace)}
    if run and run.push_to and not is_remote(run.push_to):
        folders["push_to"] = run.push_to
    if run:
        folders["data.path"] = run.data.path
    for name, path in folders.items():
        if run and (volume := volume_of(run, path)):
            checks.append((name, partial(check_volume, name, path, volume)))
        elif run and name == "data.path":
            checks.append((name, partial(check_data, path)))
            checks.append(("data sample", partial(check_data_sample, run)))
        else:
            checks.append((name, partial(check_writable, name, path)))
    if run and run.kubeflow and run.kubeflow.host:
        checks.append(("Kubeflow", partial(check_kubeflow, run)))
    if run and accelerator is not None:
        checks.append((accelerator.name, partial(check_accelerator, run, accelerator)))
    with ThreadPoolExecutor() as pool:  # the two imports take most of the time
        return tuple(finding for found in pool.map(run_check, *zip(*checks, strict=True)) for finding in found)


# --- Python and packages --------------------------------------------------------------------------------------------


def check_python() -> Iterator[Finding]:
    """Check Python's version against detloom's requirement."""
    from packaging.specifiers import SpecifierSet

    from detloom.pipelines.commands.installed_packages import read_project

    wanted, version = read_project()[0], platform.python_version()
    is_right = SpecifierSet(wanted).contains(version, prereleases=True)
    yield Finding(
        name="Python",
        status="ok" if is_right else "error",
        found=f"{version} ({sys.executable})",
        wanted=wanted,
        next_step="" if is_right else "make an environment with such a Python; TFX 1.16 needs 3.10",
    )


def check_packages() -> Iterator[Finding]:
    """Report missing and wrong packages, or one finding if all are right; then compare with the constraints file."""
    from detloom.pipelines.commands.installed_packages import (
        known_bad,
        read_installed,
        read_project,
        unmet_requirements,
    )

    packages, requirements = read_installed(), read_project()[1]
    faults = [*unmet_requirements(requirements, packages), *known_bad(packages)]
    for fault in faults:
        yield Finding(
            name=f"package {fault.name}",
            status=fault.status,
            found=fault.found,
            wanted=fault.wanted,
            next_step=fault.next_step,
        )
    if not faults:
        yield Finding(name="packages", status="ok", found="all direct and indirect requirements of detloom are met")
    yield from _check_pins(packages)


def _check_pins(packages: "Packages") -> Iterator[Finding]:
    from detloom.pipelines.commands.installed_packages import differences_from_pins, pins_file, tfx_line

    file = pins_file(tfx_line(packages))
    if file is None:  # installed from a wheel, or TFX is missing, which is reported above
        return
    differences = differences_from_pins(packages, file.read_text(encoding="utf-8"))
    shown = ", ".join(differences[:8]) + (f" and {len(differences) - 8} more" if len(differences) > 8 else "")
    yield Finding(
        name="constraints",
        status="warning" if differences else "ok",
        found=f"these versions differ from the tested ones: {shown}" if differences else f"the versions of {file.name}",
        wanted=f"the versions of {file.name}",
        next_step=f"pip install -c {file} tfx" if differences else "",
    )


def check_glibc() -> Iterator[Finding]:
    """Check the C library against the requirement of the installed TFX line's wheels."""
    from detloom.pipelines.commands.installed_packages import read_installed, tfx_line

    library, version = platform.libc_ver()
    line = tfx_line(read_installed())
    wanted = _GLIBC_OF_LINE.get(line, min(_GLIBC_OF_LINE.values()))
    is_right = library == "glibc" and tuple(int(part) for part in version.split(".")[:2]) >= wanted
    yield Finding(
        name="glibc",
        status="ok" if is_right else "error",
        found=f"{library or 'no glibc'} {version}".strip(),
        wanted=f"{wanted[0]}.{wanted[1]} or newer" + (f" for TFX {line}" if line else ""),
        next_step="" if is_right else "use TFX 1.16, or a system such as Debian 13 or Ubuntu 24.04",
    )


# --- TensorFlow and TFX, in subprocesses ----------------------------------------------------------------------------


def check_tensorflow(probe: Probe) -> Iterator[Finding]:
    """Check that TensorFlow imports, and report the devices that it sees."""
    if probe.failure:
        yield _broken("TensorFlow", "tensorflow", probe)
        return
    version, devices = probe.answer["version"], probe.answer["devices"]
    yield Finding(name="TensorFlow", status="ok", found=f"{version}, devices {', '.join(devices)}")
    if _has_nvidia_gpu() and not any(device.startswith("GPU") for device in devices):
        yield Finding(
            name="GPU",
            status="warning",
            found="the machine has an NVIDIA GPU, TensorFlow sees none",
            wanted="a GPU among TensorFlow's devices",
            next_step=f"pip install 'tensorflow[and-cuda]=={version}', and check CUDA_VISIBLE_DEVICES",
        )


def check_tfx(probe: Probe) -> Iterator[Finding]:
    """Check that TFX imports."""
    if probe.failure:
        yield _broken("TFX", "tfx", probe)
    else:
        yield Finding(name="TFX", status="ok", found=probe.answer["version"])


def _broken(name: str, package: str, probe: Probe) -> Finding:
    return Finding(
        name=name,
        status="error",
        found=probe.failure,
        wanted="an import without errors",
        next_step=f"python -c 'import {package}' shows the full error; usually one of the packages above is the cause",
    )


def _has_nvidia_gpu() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*"))


# --- machine and folders --------------------------------------------------------------------------------------------


def check_memory() -> Iterator[Finding]:
    """Check the memory that a process may use: free memory, limited by its cgroup."""
    import psutil

    from detloom.trainer_module.runtime.host_memory import cgroup_limit_bytes, format_bytes, usable_bytes

    usable, limit = usable_bytes(), cgroup_limit_bytes()
    total = format_bytes(psutil.virtual_memory().total)
    is_enough = usable >= _MIN_MEMORY_BYTES
    limited = f", limit of the container {format_bytes(limit)}" if limit is not None else ""
    yield Finding(
        name="memory",
        status="ok" if is_enough else "warning",
        found=f"{format_bytes(usable)} usable of {total}{limited}",
        wanted=f"{format_bytes(_MIN_MEMORY_BYTES)} or more",
        next_step="" if is_enough else "end other programs, raise the container's limit, or lower train.batch_size",
    )


def check_cpus() -> Iterator[Finding]:
    """Report how many CPUs this process may use."""
    usable, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    yield Finding(name="CPUs", status="ok", found=f"{usable}" + (f" of {present}" if usable < present else ""))


def check_disk(name: str, path: Path) -> Iterator[Finding]:
    """Check the free space at a folder's current or future location."""
    from detloom.trainer_module.runtime.host_memory import format_bytes

    folder = _existing(path)
    free = shutil.disk_usage(folder).free
    is_enough = free >= _MIN_DISK_BYTES
    yield Finding(
        name=name,
        status="ok" if is_enough else "warning",
        found=f"{format_bytes(free)} free at {redact(str(folder))}",
        wanted=f"{format_bytes(_MIN_DISK_BYTES)} or more",
        next_step="" if is_enough else "free some space, or choose another folder",
    )


def check_writable(name: str, path: str) -> Iterator[Finding]:
    """Create and remove a file in the folder, or in its nearest existing parent."""
    folder = _existing(Path(path))
    where = redact(path) if folder == Path(path) else f"{redact(path)}, to be made in {redact(str(folder))}"
    try:
        with tempfile.NamedTemporaryFile(prefix=".detloom-doctor-", dir=folder):
            pass
    except OSError as error:
        yield Finding(
            name=name,
            status="error",
            found=f"{where}: {error.strerror}",
            wanted="a folder that can be written",
            next_step=f"give this user write permission, or set {name} to another folder",
        )
    else:
        yield Finding(name=name, status="ok", found=f"{where}: writable")


def volume_of(run: RunFile, path: str) -> str:
    """Return the volume of a path that exists only in the containers of a cluster; empty for other paths."""
    if os.path.exists(path.partition("{")[0]):
        return ""
    if run.kubeflow is not None:
        for volume in run.kubeflow.volumes:
            if PurePosixPath(path).is_relative_to(volume.mount_path):
                return f"the claim {volume.claim}"
    return "a mounted bucket" if run.vertex is not None and path.startswith("/gcs/") else ""


def check_volume(name: str, path: str, volume: str) -> Iterator[Finding]:
    """Report a path in the containers, which cannot be checked here."""
    yield Finding(name=name, status="ok", found=f"{redact(path)}: in the containers, on {volume}; not checked here")


def check_kubeflow(run: RunFile) -> Iterator[Finding]:
    """Connect to the API of Kubeflow Pipelines, and check the settings of the cluster that the run file relies on."""
    from detloom.pipelines.backends.backend import connect
    from detloom.schemas.errors import InputError

    assert run.kubeflow is not None
    try:
        backend = connect(run, "kubeflow")
        backend.latest_runs(1)
        warnings = backend.warnings(run)
    except InputError as error:
        found, next_step = str(error), "needed only for submit, status and schedule"
        yield Finding(
            name="Kubeflow", status="warning", found=found, wanted="an answer of the API", next_step=next_step
        )
        return
    for warning in warnings:
        yield Finding(name="Kubeflow", status="warning", found=warning)
    if not warnings:
        yield Finding(name="Kubeflow", status="ok", found=f"{redact(run.kubeflow.host)} answers")


def _existing(path: Path) -> Path:
    """Return the path, or its nearest existing parent."""
    return next(
        each for each in (path, *path.parents) if os.path.exists(each)
    )  # exists() is also False for a name that is too long
