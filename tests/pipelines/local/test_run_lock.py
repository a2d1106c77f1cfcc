import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import detloom
from detloom.pipelines.local.run_lock import LOCK_FILE, WorkspaceBusyError, hold_workspace
from detloom.schemas.errors import InputError

ROOT = Path(detloom.__file__).parents[1]
HOLD = """
import sys
from pathlib import Path
from detloom.pipelines.local.run_lock import hold_workspace
with hold_workspace(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.reliability("concurrent runs", "metadata")
def test_a_second_run_in_a_workspace_is_refused_with_the_owner(tmp_path):
    with hold_workspace(tmp_path / "new"):
        owner = rf".*process {os.getpid()} on "
        with pytest.raises(WorkspaceBusyError, match=owner) as caught, hold_workspace(tmp_path / "new"):
            pass
    assert caught.value.exit_code == 75
    with hold_workspace(tmp_path / "new"):
        pass


@pytest.mark.reliability("kill", "metadata")
@pytest.mark.slow
def test_the_lock_of_a_killed_process_is_released(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(WorkspaceBusyError, match=f"process {process.pid} "), hold_workspace(tmp_path):
            pass
        process.kill()
    with hold_workspace(tmp_path):
        assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()


def test_locks_of_different_workspaces_are_independent(tmp_path):
    with hold_workspace(tmp_path / "one"), hold_workspace(tmp_path / "two"):
        for name in ("one", "two"):
            assert json.loads((tmp_path / name / LOCK_FILE).read_text())["pid"] == os.getpid()


def test_a_workspace_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file: "), hold_workspace(tmp_path / "file"):
        pass


@pytest.mark.reliability("hostile input", "metadata")
def test_a_link_as_lock_file_is_not_followed(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / LOCK_FILE).symlink_to(precious)
    with pytest.raises(InputError, match="cannot be used"), hold_workspace(tmp_path):
        pass
    assert precious.read_text() == "mine"
