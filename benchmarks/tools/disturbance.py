"""Measure how much of the machine other programs use: above about 5 %, measured times are unreliable.

Other programs are processes, and other guests of the same host if its hypervisor reports them.
"""

import os
import resource
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil


class Disturbance:
    """The share of all cores that other processes have used since this object was created."""

    def __init__(self, our_seconds: Callable[[], float]) -> None:
        """`our_seconds` returns the CPU time of our processes so far, such as `children_seconds`."""
        self._our_seconds = our_seconds
        self._started, self._before = time.monotonic(), self._others_seconds()

    def share(self) -> float:
        """Return the share, 0 to 1."""
        others = self._others_seconds() - self._before
        passed = (time.monotonic() - self._started) * (os.cpu_count() or 1)
        return max(0.0, others / passed)

    def _others_seconds(self) -> float:
        times = psutil.cpu_times()
        stolen = getattr(times, "steal", 0.0)  # Linux: time that a guest's cores waited for the host
        return float(times.user + times.nice + times.system + stolen) - self._our_seconds()


def children_seconds() -> float:
    """Return the CPU time of finished child processes and their children."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def process_seconds(pid: int) -> float:
    """Return the CPU time of a running process without its children."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


@dataclass(frozen=True, kw_only=True)
class ChildRun:
    """The result of a child process; `others` is the share of all cores that other processes used, 0 to 1."""

    seconds: float
    others: float


def run_child(command: Sequence[str], log_path: Path) -> ChildRun:
    """Run a command to its end with its output in a file.

    Raises:
        RuntimeError: with the end of that file, if it fails.
    """
    disturbance, started = Disturbance(children_seconds), time.monotonic()
    with log_path.open("w", encoding="utf-8") as log:
        code = subprocess.run(list(command), stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    if code != 0:
        raise RuntimeError(f"{' '.join(command)}: exit code {code}: {log_path.read_text(encoding='utf-8')[-3000:]}")
    return ChildRun(seconds=time.monotonic() - started, others=disturbance.share())
