"""Hide the log lines that TensorFlow's C++ code writes to file descriptor 2, except errors.

`TF_CPP_MIN_LOG_LEVEL` does not cover XLA, which logs through Abseil before anything can set Abseil's level. So a small
program stands between file descriptor 2 and the terminal. It is a process of its own, because it has to pass on the
last words of a process that crashes.
"""

import os
import subprocess
import sys

LEVEL_VARIABLE = "TF_CPP_MIN_LOG_LEVEL"  # read by TensorFlow's C++ code
_ERRORS_ONLY = "3"
# Prefix of a line: severity, month and day, time, thread, file and line (https://abseil.io/docs/cpp/guides/logging).
_FILTER = r"""
import re, sys
hidden = re.compile(rb"[IW]\d{4} \d\d:\d\d:\d+\.\d+\s+\d+ [\w.-]+:\d+\] |WARNING: All log messages before absl::")
for line in sys.stdin.buffer:
    if not hidden.match(line):
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
"""


def hide_native_log() -> None:
    """Hide such lines of this process and its children until it ends, unless the user has set TF_CPP_MIN_LOG_LEVEL.

    Python's `sys.stderr` is not filtered and stays connected to the terminal. Call it once, before TensorFlow is
    imported. In a process whose `sys.stderr` somebody has replaced, it changes nothing.
    """
    if os.environ.setdefault(LEVEL_VARIABLE, _ERRORS_ONLY) != _ERRORS_ONLY or not _is_python_on_2():
        return
    terminal, encoding = os.dup(2), sys.stderr.encoding
    command = [sys.executable, "-I", "-S", "-c", _FILTER]
    # In a session of its own, so that Ctrl-C does not end it before this process; it ends with its input.
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=terminal, start_new_session=True)
    assert program.stdin is not None
    os.dup2(program.stdin.fileno(), 2)
    program.stdin.close()
    program.returncode = 0  # nobody waits for it, and Popen must not warn about that
    sys.stderr = os.fdopen(terminal, "w", buffering=1, encoding=encoding, errors="backslashreplace")


def _is_python_on_2() -> bool:
    try:
        return sys.stderr.fileno() == 2
    except (AttributeError, OSError, ValueError):  # closed, None, or without a file
        return False
