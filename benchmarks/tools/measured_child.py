"""Measure a command: its time, and the memory and temporary disk of it and its children."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil
from tools.disturbance import Disturbance, children_seconds

_PERIOD_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class Use:
    """Time, memory and disk that a command used.

    Attributes:
        result: the JSON of its last line.
        cpu_seconds: of it and its children.
        peak_main_mb, peak_workers_mb: largest resident memory of it, and of all its children together.
        temporary_mb: largest size of the folder of temporary files.
        others: share of all cores that other processes used meanwhile; above about 0.05, seconds are unreliable.
    """

    result: dict[str, Any]
    seconds: float
    cpu_seconds: float
    peak_main_mb: float
    peak_workers_mb: float
    temporary_mb: float
    others: float


def measure(command: Sequence[str], temporary: Path | None = None) -> Use:
    """Run a command to its end.

    Args:
        temporary: folder of its temporary files, whose size is measured; None leaves the system's.

    Raises:
        RuntimeError: with the end of its errors, if it fails.
    """
    environment = {**os.environ, **({"TMPDIR": str(temporary)} if temporary else {})}
    disturbance, started, cpu_before = Disturbance(children_seconds), time.monotonic(), children_seconds()
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(list(command), stdout=output, stderr=errors, env=environment)
        peak_main, peak_workers, largest = _watch(process, temporary)
        seconds = time.monotonic() - started
        if process.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}: {_text_of(errors)[-3000:]}")
        result = json.loads(_text_of(output).strip().splitlines()[-1])
    return Use(
        result=result,
        seconds=seconds,
        cpu_seconds=children_seconds() - cpu_before,
        peak_main_mb=peak_main / 1e6,
        peak_workers_mb=peak_workers / 1e6,
        temporary_mb=largest / 1e6,
        others=disturbance.share(),
    )


def _watch(process: subprocess.Popen[bytes], temporary: Path | None) -> tuple[int, int, int]:
    """Wait for the end; return the largest memory of the process, of its children, and of the folder, in bytes."""
    main, peak_main, peak_workers, largest = psutil.Process(process.pid), 0, 0, 0
    while process.poll() is None:
        with contextlib.suppress(psutil.Error):
            peak_main = max(peak_main, main.memory_info().rss)
            workers = 0
            for child in main.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    workers += child.memory_info().rss
            peak_workers = max(peak_workers, workers)
        if temporary:
            largest = max(largest, folder_bytes(temporary))
        time.sleep(_PERIOD_SECONDS)
    return peak_main, peak_workers, largest


def _text_of(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def folder_bytes(folder: Path) -> int:
    """Return the size of all files below a folder, which may change meanwhile."""
    total, waiting = 0, [folder]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                else:
                    with contextlib.suppress(OSError):
                        total += entry.stat(follow_symlinks=False).st_size
    return total


def this_script(*arguments: str) -> list[str]:
    """Return the command that runs the current script with other arguments."""
    return [sys.executable, sys.argv[0], *arguments]
