"""A process that times calls on request, and the other side of it. Standard library alone; Python 3.9 reads it too.

The process prints a line of JSON when it is ready, then for every line that it reads, `WHAT... COUNT`, one with the
seconds of so many calls of that. What else it prints is passed over.
"""

import json
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List  # noqa: UP035 (Python 3.9)


def answer_requests(call: Callable[..., None], **ready: Any) -> None:
    """Say that it is ready, with what else is to be known, then call for each request until the input ends."""
    print(json.dumps({"ready": True, **ready}), flush=True)
    for line in sys.stdin:
        *what, count = line.split()
        seconds = []
        for _ in range(int(count)):
            started = time.perf_counter()
            call(*what)
            seconds.append(time.perf_counter() - started)
        print(json.dumps(seconds), flush=True)


class TimedProcess:
    """Such a process, once it is ready."""

    def __init__(self, command: List[str]) -> None:  # noqa: UP006
        started = time.monotonic()
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        self.pid = self._process.pid
        self.ready: Dict[str, Any] = self._read()  # noqa: UP006
        self.start_up_seconds = time.monotonic() - started

    def seconds(self, what: str, count: int) -> List[float]:  # noqa: UP006
        """Of each of so many calls."""
        assert self._process.stdin
        self._process.stdin.write(f"{what} {count}\n")
        self._process.stdin.flush()
        return [float(value) for value in self._read()]

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()
        self._errors.close()

    def _read(self) -> Any:
        assert self._process.stdout
        for line in self._process.stdout:
            if line[0] in "[{":
                return json.loads(line)
        self._errors.seek(0)
        raise RuntimeError(f"{self._process.args!r}: {self._errors.read()[-3000:]}")
