"""The tests start processes of their own, because file descriptor 2 belongs to the whole process."""

import os
import signal
import subprocess
import sys

import pytest

CODE = """
import os, subprocess, sys
from detloom.trainer_module.runtime.native_log import hide_native_log
hide_native_log()
print("python", file=sys.stderr)
os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\\n")
for severity in "IWEF":
    line = f"{severity}0000 00:00:1795477995.745944   31365 service.cc:145] of severity {severity}"
    os.write(2, line.encode() + b"\\n")
subprocess.run([sys.executable, "-c", "import os; os.write(2, b'I0000 00:00:1.5  7 a.cc:1] of a child\\\\n')"])
os.write(2, b"plain\\n")
"""


def run(code, **environment):
    inherited = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    return subprocess.run(
        [sys.executable, "-c", code], env={**inherited, **environment}, capture_output=True, text=True, timeout=60
    )


def test_only_errors_of_native_code_are_shown():
    lines = [line.rpartition(" ")[2] for line in run(CODE).stderr.splitlines()]
    assert sorted(lines) == ["E", "F", "plain", "python"]


def test_a_replaced_stderr_changes_nothing():
    replaced = CODE.replace("hide_native_log()\n", "import io; sys.stderr = io.StringIO(); hide_native_log()\n", 1)
    assert len(run(replaced).stderr.splitlines()) == 7  # without Python's line


def test_a_level_that_the_user_set_shows_all():
    assert len(run(CODE, TF_CPP_MIN_LOG_LEVEL="0").stderr.splitlines()) == 8


@pytest.mark.parametrize("end", [signal.SIGABRT, signal.SIGKILL])
def test_the_last_words_of_a_crash_are_shown(end):
    result = run(f"{CODE}os.write(2, b'check failed'); os.kill(os.getpid(), {int(end)})")
    assert result.returncode == -end
    assert result.stderr.endswith("check failed")


def test_an_exception_keeps_its_traceback_and_exit_code():
    result = run(f"{CODE}raise KeyError('bug')")
    assert result.returncode == 1
    assert "KeyError: 'bug'" in result.stderr
