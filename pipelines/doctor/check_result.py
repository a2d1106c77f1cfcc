"""Results of checks, and how checks run: one cannot stop the others, and slow imports run in subprocesses."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Literal

from detloom.schemas.reading.redact import escape

_PROBE_SECONDS = 180  # a cold import of TFX took up to 44 s in our measurements; a network disk is slower

Check = Callable[[], Iterator["CheckResult"]]


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The result of one check; `expected` and `next_step` may be empty if the status is ok."""

    name: str
    status: Literal["ok", "warning", "error"]
    detail: str
    expected: str = ""
    next_step: str = ""


def run_checks(checks: Mapping[str, Check]) -> tuple[CheckResult, ...]:
    """Run checks by name at the same time: the imports of TensorFlow and TFX take most of it."""
    with ThreadPoolExecutor() as pool:
        return tuple(result for results in pool.map(_run_check, checks, checks.values()) for result in results)


def _run_check(name: str, check: Check) -> tuple[CheckResult, ...]:
    """Return the results of a check; an exception in it, such as a missing package, becomes a result."""
    try:
        return tuple(check())
    except TimeoutError as error:
        next_step = "end other programs, and run detloom doctor again: the machine is too busy, or its disk too slow"
        return (CheckResult(name=name, status="error", detail=str(error), next_step=next_step),)
    except Exception as error:
        is_probe = isinstance(error, ProbeError)
        detail = str(error) if is_probe else f"the check failed ({type(error).__name__}: {error})"
        next_step = "install detloom's packages again, with `make venv` or from the constraints file of a TFX line"
        return (CheckResult(name=name, status="error", detail=detail, next_step=next_step),)


def format_results(results: tuple[CheckResult, ...], *, as_json: bool = False) -> str:
    """Format one line per result; for warnings and errors, also what is expected and the next step."""
    if as_json:
        return json.dumps([asdict(result) for result in results], indent=1)
    width = max(len(result.name) for result in results)
    lines = []
    for result in results:
        lines.append(f"  {result.status:<7}  {result.name:<{width}}  {escape(result.detail)}")
        if result.status != "ok":
            labelled = (("expected", result.expected), ("next step", result.next_step))
            lines += [f"{'':<{width + 13}}{label}: {escape(text)}" for label, text in labelled if text]
    counts = {status: sum(result.status == status for result in results) for status in ("error", "warning")}
    said = [f"{count} {status}{'s' if count > 1 else ''}" for status, count in counts.items() if count]
    return "\n".join([*lines, "", ", ".join(said) or "No problems found."])


class ProbeError(Exception):
    """A probe failed, with the reason as message."""


def run_probe(code: str, *arguments: str, seconds: float = _PROBE_SECONDS, what: str = "its import") -> Any:
    """Run Python code that prints one line of JSON, in a process that may hang or die; return the parsed line.

    Args:
        what: what the code does, for the reason of a failure.

    Raises:
        ProbeError: if the process fails.
        TimeoutError: if it does not end in time.
    """
    command = [sys.executable, "-c", code, *arguments]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment, check=False)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{what} took too long, more than {seconds:.0f} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        cause = f"killed by signal {-done.returncode}" if done.returncode < 0 else "; ".join(lines[-1:])
        raise ProbeError(f"{what} failed ({cause})")
    return json.loads(done.stdout.strip().splitlines()[-1])
