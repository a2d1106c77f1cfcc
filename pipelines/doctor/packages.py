"""Check the installed packages: with `pip check`, and for versions with which TFX cannot be imported."""

import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator

from packaging.specifiers import SpecifierSet

from detloom.pipelines.doctor.check_result import CheckResult
from detloom.pipelines.tfx_line import KNOWN_PROBLEMS, is_false_alarm, line_of


def check_packages() -> Iterator[CheckResult]:
    """Report missing and wrong packages."""
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    problems = done.stdout.strip().splitlines() if done.returncode else []
    has_failed = bool(done.returncode) and not problems
    problems = [problem for problem in problems if not is_false_alarm(problem)]
    for name, (versions, reason) in KNOWN_PROBLEMS.get(line_of(_version("tfx") or ""), {}).items():
        found = _version(name)
        if found is None or not SpecifierSet(versions).contains(found, prereleases=True):
            problems.append(f"{name} {found or 'missing'}, required {versions}: {reason}")
    for problem in problems:
        next_step = (
            "pip install the version in constraints/ of detloom's checkout, or in /opt/detloom/constraints of its image"
        )
        yield CheckResult(name="packages", status="error", detail=problem, next_step=next_step)
    if has_failed:  # without pip, for example, in an environment that uv made
        detail = "`pip check` failed: " + done.stderr.strip().rpartition("\n")[2]
        next_step = f"{sys.executable} -m ensurepip"
        yield CheckResult(name="packages", status="warning", detail=detail, next_step=next_step)
    elif not problems:
        yield CheckResult(name="packages", status="ok", detail="all direct and indirect requirements are met")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
