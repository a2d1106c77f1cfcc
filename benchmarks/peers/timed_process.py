"""A process that times calls on request, and its client. Uses only the standard library; compatible with Python 3.9.

The process prints a line of JSON when it is ready, then for each line `NAME... COUNT` that it reads, a line with the
seconds of that many calls. Other output is ignored.
"""

import json
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List  # noqa: UP035 (Python 3.9)


def answer_requests(call: Callable[..., None], **ready: Any) -> None:
    """Report readiness with additional information, then answer requests until the input ends."""
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
    """A timed process that is ready."""

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
        """Return the seconds of each of `count` calls."""
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
