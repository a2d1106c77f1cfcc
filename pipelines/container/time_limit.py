"""Limit the time of a process from outside, because TensorFlow may not return to Python for a long time.

The process forks before it imports anything heavy. The child, in its own process group, does the work. The parent
waits, forwards signals (a training run saves its state on SIGTERM), and kills the group when the time is up.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable

EXIT_CODE = 124  # same as `timeout` in GNU coreutils
GRACE_SECONDS = 30.0  # between SIGTERM and SIGKILL, for a training run to save its state
_FORWARDED = {signal.SIGTERM, signal.SIGINT}
_WATCHED = {signal.SIGCHLD, *_FORWARDED}


def run_limited(work: Callable[[], int], seconds: float, grace_seconds: float = GRACE_SECONDS) -> int:
    """Return the exit code of `work()` in a child process, or `EXIT_CODE` if it exceeded the limit.

    In the child this does not return: it raises SystemExit.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)  # before the fork, so that no signal is lost
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
    print(f"error: timed out after {seconds:g} s; stopping the node.", file=sys.stderr, flush=True)
    os.kill(child, signal.SIGTERM)
    code = _wait(child, grace_seconds)
    if code is None:
        _end_group(child)
        os.waitpid(child, 0)
    return code if code == 0 else EXIT_CODE  # 0: it finished during the grace period, and its output is complete


def _wait(child: int, seconds: float) -> int | None:
    """Return the exit code of the child; None if it is still running after that time."""
    give_up = time.monotonic() + seconds
    while (left := give_up - time.monotonic()) > 0:
        received = signal.sigtimedwait(_WATCHED, left)
        if received is not None and received.si_signo in _FORWARDED:
            os.kill(child, received.si_signo)
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code  # same convention as in shells: 128 plus the signal number
    return None


def _end_group(child: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # also ends the child's own children
