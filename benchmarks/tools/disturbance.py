"""How much of the machine others used while a child of ours ran: above some 5 %, its times say little."""

import os
import resource
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, kw_only=True)
class ChildRun:
    """`others` is the share of all cores that other processes used, 0 to 1."""

    seconds: float
    others: float


def run_child(command: Sequence[str], log_path: Path) -> ChildRun:
    """Run a command to its end, with what it prints in a file.

    Raises:
        RuntimeError: with the end of that file, if it fails.
    """
    busy, own, started = _busy_seconds(), _children_seconds(), time.monotonic()
    with log_path.open("w", encoding="utf-8") as log:
        code = subprocess.run(list(command), stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    seconds = time.monotonic() - started
    if code != 0:
        raise RuntimeError(f"{' '.join(command)}: exit code {code}: {log_path.read_text(encoding='utf-8')[-3000:]}")
    others = (_busy_seconds() - busy) - (_children_seconds() - own)
    return ChildRun(seconds=seconds, others=max(0.0, others / seconds / (os.cpu_count() or 1)))


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


def _children_seconds() -> float:
    """Of processes that ended and were waited for, with their own children."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
