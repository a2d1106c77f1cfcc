"""Check the installed packages: with `pip check`, and against the constraints file of a TFX line."""

import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

import detloom
from detloom.pipelines.doctor.check_result import CheckResult

_MAX_SHOWN = 8
# pip allows these beside TFX 1.16, which then cannot be imported.
_KNOWN_PROBLEMS = {
    "setuptools": ("<81", "TFX 1.16 imports pkg_resources, which later releases drop"),
    "dill": (">=0.3", "tfx-bsl 1.16 imports it, and only Beam before 2.65 installs it"),
}


def check_packages() -> Iterator[CheckResult]:
    """Report missing and wrong packages; then compare with the constraints file of a checkout."""
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    problems = done.stdout.strip().splitlines() if done.returncode else []
    has_failed = bool(done.returncode) and not problems
    tfx = _version("tfx") or ""
    if tfx.startswith("1.16."):
        for name, (versions, reason) in _KNOWN_PROBLEMS.items():
            if not _meets(Requirement(name + versions)):
                problems.append(f"{name} {_version(name) or 'missing'}, required {versions}: {reason}")
    for problem in problems:
        next_step = "pip install the version that is named, with the constraints file of the TFX line"
        yield CheckResult(name="packages", status="error", detail=problem, next_step=next_step)
    if has_failed:  # without pip, for example, in an environment that uv made
        detail = "`pip check` failed: " + done.stderr.strip().rpartition("\n")[2]
        next_step = f"{sys.executable} -m ensurepip"
        yield CheckResult(name="packages", status="warning", detail=detail, next_step=next_step)
    elif not problems:
        yield CheckResult(name="packages", status="ok", detail="all direct and indirect requirements are met")
    line = ".".join(tfx.split(".")[:2])
    file = Path(detloom.__file__).resolve().parent.parent / f"constraints/tfx-{line}.txt"
    if file.is_file():  # missing if detloom is installed from a wheel
        yield check_constraints(file)


def check_constraints(file: Path) -> CheckResult:
    """Compare versions with a constraints file."""
    differences = []
    for line in file.read_text(encoding="utf-8").splitlines():
        text = line.partition("#")[0].strip()
        requirement = Requirement(text) if text and not text.startswith("-") else None
        if requirement is None or (requirement.marker and not requirement.marker.evaluate()):
            continue
        version = _version(requirement.name)
        if not _meets(requirement):
            pinned = str(requirement.specifier).removeprefix("==")
            differences.append(f"{requirement.name} {version or 'missing'} ({pinned})")
    if not differences:
        return CheckResult(name="constraints", status="ok", detail=f"the versions of {file.name}")
    more = f" and {len(differences) - _MAX_SHOWN} more" if len(differences) > _MAX_SHOWN else ""
    return CheckResult(
        name="constraints",
        status="warning",
        detail=f"these versions differ from the tested ones: {', '.join(differences[:_MAX_SHOWN])}{more}",
        expected=f"the versions of {file.name}",
        next_step=f"pip install -c {file} tfx",
    )


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _meets(requirement: Requirement) -> bool:
    version = _version(requirement.name)
    return version is not None and requirement.specifier.contains(version, prereleases=True)
