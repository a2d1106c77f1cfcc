"""Findings of the checks of `detloom doctor` and `image-check`, and subprocesses that may hang or die for them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

_PROBE_SECONDS = 180  # a cold import of TFX took up to 44 s in our measurements; a network disk is slower

Status = Literal["ok", "warning", "error"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check; `wanted` and `next_step` may be empty if the status is ok."""

    name: str
    status: Status
    found: str
    wanted: str = ""
    next_step: str = ""


def format_findings(findings: tuple[Finding, ...]) -> str:
    """Format one line per finding; for warnings and errors, also the requirement and the next step."""
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"  {finding.status:<7}  {finding.name:<{width}}  {finding.found}")
        if finding.status != "ok":
            labelled = (("wanted", finding.wanted), ("next step", finding.next_step))
            lines += [f"{'':<{width + 13}}{label}: {text}" for label, text in labelled if text]
    counts = {status: sum(finding.status == status for finding in findings) for status in ("error", "warning")}
    said = [f"{count} {status}{'s' if count > 1 else ''}" for status, count in counts.items() if count]
    return "\n".join([*lines, "", ", ".join(said) or "No problems found."])


def run_check(name: str, check: Callable[[], Iterator[Finding]]) -> tuple[Finding, ...]:
    """Return a check's findings; an exception in it, such as a missing package, becomes a finding."""
    try:
        return tuple(check())
    except Exception as error:
        found = f"the check failed ({type(error).__name__}: {error})"
        next_step = "install detloom's packages again, with the constraints file of a TFX line"
        return (Finding(name=name, status="error", found=found, next_step=next_step),)


@dataclass(frozen=True)
class Probe:
    """The JSON output of a subprocess, or the reason for its failure."""

    answer: dict[str, Any]
    failure: str = ""
    is_timeout: bool = False


def run_probe(code: str, *arguments: str, seconds: float = _PROBE_SECONDS, what: str = "its import") -> Probe:
    """Run Python code that prints one line of JSON, in a process that may hang or die.

    Args:
        what: what the code does, for the reason of a failure.
    """
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            timeout=seconds,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Probe({}, f"{what} did not end within {seconds:.0f} s", is_timeout=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        cause = f"killed by signal {-done.returncode}" if done.returncode < 0 else "; ".join(lines[-1:])
        return Probe({}, f"{what} failed ({cause})")
    return Probe(json.loads(done.stdout.strip().splitlines()[-1]))
