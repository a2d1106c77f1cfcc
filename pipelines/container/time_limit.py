"""A limit on the time of a process, kept from outside: TensorFlow may not come back to Python for a long time.

The process forks before it has imported anything heavy. The child, in a process group of its own, does the work; the
parent waits, passes signals on to it (Kubernetes ends a pod with SIGTERM, at which a training saves its state), and
ends the group when the time is over.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable

EXIT_CODE = 124  # as of `timeout` in GNU coreutils
GRACE_SECONDS = 30.0  # between SIGTERM and SIGKILL: a training saves its state meanwhile
_PASSED_ON = {signal.SIGTERM, signal.SIGINT}
_WATCHED = {signal.SIGCHLD, *_PASSED_ON}


def run_limited(work: Callable[[], int], seconds: float, grace_seconds: float = GRACE_SECONDS) -> int:
    """The exit code of `work()`, which runs in a child process, or `EXIT_CODE` if it was ended.

    In the child this does not return: it raises SystemExit.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)  # before the fork: no signal is lost
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        raise SystemExit(work())
    try:
        return _watch(child, seconds, grace_seconds)
    finally:
        _end_group(child)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _watch(child: int, seconds: float, grace_seconds: float) -> int:
    code = _wait(child, seconds)
    if code is not None:
        return code
    print(f"error: the time limit of {seconds:g} seconds has passed; the node is ended.", file=sys.stderr, flush=True)
    os.kill(child, signal.SIGTERM)
    code = _wait(child, grace_seconds)
    if code is None:
        _end_group(child)
        os.waitpid(child, 0)
    return code if code == 0 else EXIT_CODE  # 0: it was just finishing, and all of its output is there


def _wait(child: int, seconds: float) -> int | None:
    """The exit code of the child; None if it still runs after that time."""
    give_up = time.monotonic() + seconds
    while (left := give_up - time.monotonic()) > 0:
        received = signal.sigtimedwait(_WATCHED, left)
        if received is not None and received.si_signo in _PASSED_ON:
            os.kill(child, received.si_signo)
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code  # as shells say it: 128 and the number of the signal
    return None


def _end_group(child: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what the child started, too
