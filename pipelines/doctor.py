"""`detloom doctor`: what of this machine, this Python and a run's folders would stop a run.

Nothing that it looks at can take it down: TensorFlow and TFX are imported in processes of their own, with a time limit,
and a check that fails becomes a finding. It writes nothing but a file in each folder of the run, which it removes.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from detloom.schemas.data_config import EMBEDDED_DIGITS
from detloom.schemas.push_config import is_remote
from detloom.schemas.redact import redact
from detloom.schemas.run_file import RunFile

if TYPE_CHECKING:
    from detloom.pipelines.installed_packages import Packages

_PROBE_SECONDS = 180  # a cold import of TFX took 44 s at worst here; a network disk is slower
_MIN_DISK_BYTES = 5e9  # the environment is 3.2 GB, a run on a small data set writes less than 1 GB
_MIN_MEMORY_BYTES = 4e9  # training FPNLite at 320 x 320, batch 8, held 2.7 GB; TFX and Beam come on top
_GLIBC_OF_LINE = {"1.16": (2, 17), "1.21": (2, 38)}  # of the wheels of TFDV and ML Metadata

TENSORFLOW_PROBE = """
import json, tensorflow as tf
devices = [device.name.removeprefix("/physical_device:") for device in tf.config.list_physical_devices()]
print(json.dumps({"version": tf.__version__, "devices": devices}))
"""
_TFX_PROBE = "import json, tfx.v1 as tfx; print(json.dumps({'version': tfx.__version__}))"

Status = Literal["ok", "warning", "error"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at; `wanted` and `next_step` may be empty where it is ok."""

    name: str
    status: Status
    found: str
    wanted: str = ""
    next_step: str = ""


def examine(run: RunFile | None = None) -> tuple[Finding, ...]:
    """Look at everything; without a run, at the folder that runs write to by default and at no data.

    Takes as long as importing TFX does.
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
    checks += [(name, partial(check_writable, name, path)) for name, path in folders.items()]
    if run:
        checks.append(("data.path", partial(check_data, run.data.path)))
    with ThreadPoolExecutor() as pool:  # the two imports take most of the time
        return tuple(finding for found in pool.map(guarded, *zip(*checks, strict=True)) for finding in found)


def format_findings(findings: tuple[Finding, ...]) -> str:
    """One line each; what is wrong also with what is wanted and what to do."""
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"  {finding.status:<7}  {finding.name:<{width}}  {finding.found}")
        if finding.status != "ok":
            labelled = (("wanted", finding.wanted), ("next step", finding.next_step))
            lines += [f"{'':<{width + 13}}{label}: {text}" for label, text in labelled if text]
    counts = {status: sum(finding.status == status for finding in findings) for status in ("error", "warning")}
    said = [f"{count} {status}{'s' if count > 1 else ''}" for status, count in counts.items() if count]
    return "\n".join([*lines, "", ", ".join(said) or "Nothing stands in the way of a run."])


def guarded(name: str, check: Callable[[], Iterator[Finding]]) -> tuple[Finding, ...]:
    """The check's findings; a check that cannot even look, say for a missing package, becomes a finding."""
    try:
        return tuple(check())
    except Exception as error:
        found = f"could not be looked at ({type(error).__name__}: {error})"
        next_step = "install detloom's packages again, with the constraints file of a TFX line"
        return (Finding(name=name, status="error", found=found, next_step=next_step),)


# --- Python and packages --------------------------------------------------------------------------------------------


def check_python() -> Iterator[Finding]:
    """Python's version against what detloom requires."""
    from packaging.specifiers import SpecifierSet

    from detloom.pipelines.installed_packages import read_project

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
    """Missing and wrong packages, one finding each, or one that says that all is well; then the constraints file."""
    from detloom.pipelines.installed_packages import known_bad, read_installed, read_project, unmet_requirements

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
        yield Finding(name="packages", status="ok", found="all that detloom requires, and all that those require")
    yield from _check_pins(packages)


def _check_pins(packages: "Packages") -> Iterator[Finding]:
    from detloom.pipelines.installed_packages import differences_from_pins, pins_file, tfx_line

    file = pins_file(tfx_line(packages))
    if file is None:  # installed from a wheel, or without TFX, which has been said
        return
    differences = differences_from_pins(packages, file.read_text(encoding="utf-8"))
    shown = ", ".join(differences[:8]) + (f" and {len(differences) - 8} more" if len(differences) > 8 else "")
    yield Finding(
        name="constraints",
        status="warning" if differences else "ok",
        found=f"other versions than tested: {shown}" if differences else f"the versions of {file.name}",
        wanted=f"the versions of {file.name}",
        next_step=f"pip install -c {file} tfx" if differences else "",
    )


def check_glibc() -> Iterator[Finding]:
    """The C library against what the wheels of the installed TFX line need."""
    from detloom.pipelines.installed_packages import read_installed, tfx_line

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


# --- TensorFlow and TFX, from outside -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Probe:
    """What a process of its own said: JSON, or else why it said nothing."""

    answer: dict[str, Any]
    failure: str = ""


def run_probe(code: str, seconds: float = _PROBE_SECONDS) -> Probe:
    """Run Python code that prints one line of JSON, in a process that may hang or die."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=seconds, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return Probe({}, f"its import did not end within {seconds:.0f} s")
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        cause = f"killed by signal {-done.returncode}" if done.returncode < 0 else "; ".join(lines[-1:])
        return Probe({}, f"its import failed ({cause})")
    return Probe(json.loads(done.stdout.strip().splitlines()[-1]))


def check_tensorflow(probe: Probe) -> Iterator[Finding]:
    """Does it import, and which devices does it see?"""
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
            next_step=f"pip install 'tensorflow[and-cuda]=={version}', and look whether CUDA_VISIBLE_DEVICES hides it",
        )


def check_tfx(probe: Probe) -> Iterator[Finding]:
    """Does it import?"""
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
        next_step=f"python -c 'import {package}' shows all of it; mostly it is one of the packages above",
    )


def _has_nvidia_gpu() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*"))


# --- machine and folders --------------------------------------------------------------------------------------------


def check_memory() -> Iterator[Finding]:
    """What a process may use, by free memory and by its cgroup."""
    import psutil

    from detloom.trainer_module.host_memory import cgroup_limit_bytes, format_bytes, usable_bytes

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
    """How many this process may use."""
    usable, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    yield Finding(name="CPUs", status="ok", found=f"{usable}" + (f" of {present}" if usable < present else ""))


def check_disk(name: str, path: Path) -> Iterator[Finding]:
    """Free space where a folder is or would be made."""
    from detloom.trainer_module.host_memory import format_bytes

    folder = _existing(path)
    free = shutil.disk_usage(folder).free
    is_enough = free >= _MIN_DISK_BYTES
    yield Finding(
        name=name,
        status="ok" if is_enough else "warning",
        found=f"{format_bytes(free)} free at {redact(str(folder))}",
        wanted=f"{format_bytes(_MIN_DISK_BYTES)} or more",
        next_step="" if is_enough else "free some space, or name another folder",
    )


def check_writable(name: str, path: str) -> Iterator[Finding]:
    """Make a file in the folder, or in the nearest one above it that is there, and remove it."""
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
            next_step=f"give this user the right to write there, or name another folder as {name}",
        )
    else:
        yield Finding(name=name, status="ok", found=f"{where}: writable")


def check_data(path: str) -> Iterator[Finding]:
    """Can the data's folder be listed, or for a pattern such as span-{SPAN} the one above it?"""
    if path == EMBEDDED_DIGITS:
        yield Finding(name="data.path", status="ok", found="the embedded data set")
        return
    beginning, brace, _ = path.partition("{")  # {SPAN} and {VERSION} are TFX's to resolve
    folder = Path(f"{beginning}{brace}").parent if brace else Path(path)
    shown = redact(str(folder))
    try:
        with os.scandir(folder) as entries:
            is_empty = next(entries, None) is None
    except OSError as error:
        found, wanted = f"{shown}: {error.strerror}", "a folder that this user can read"
        next_step = "correct data.path, or give this user the right to read there"
        yield Finding(name="data.path", status="error", found=found, wanted=wanted, next_step=next_step)
        return
    yield Finding(
        name="data.path",
        status="warning" if is_empty else "ok",
        found=f"{shown}: {'empty' if is_empty else 'readable'}",
        wanted="a folder with the data set",
        next_step="look whether data.path is right, and whether its disk is mounted" if is_empty else "",
    )


def _existing(path: Path) -> Path:
    """The path, or the nearest one above it that is there."""
    return next(
        each for each in (path, *path.parents) if os.path.exists(each)
    )  # False also for a name that is too long
