"""scripts/flink_cluster.py ends everything that it started."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from flink_access import ROOT, wait_for

pytestmark = [pytest.mark.flink, pytest.mark.timeout(600)]
SCRIPT = ROOT / "scripts/flink_cluster.py"


def processes_of(folder: Path) -> list[str]:
    """Return the command lines of all processes that name a folder."""
    return [
        line
        for each in psutil.process_iter(["cmdline"])
        if str(folder) in (line := " ".join(each.info["cmdline"] or ()))
    ]


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_a_second_cluster_ends_with_its_script(tmp_path, end):
    command = ["run", "--folder", str(tmp_path), "--", "sleep", "1000"]
    script = subprocess.Popen([sys.executable, str(SCRIPT), *command])
    # The script, setpriv with unshare, the first process inside, two Java processes of task managers.
    wait_for(lambda: (tmp_path / "cluster.json").exists(), script)
    assert len(processes_of(tmp_path)) >= 6
    getattr(script, end)()
    script.wait(30)
    wait_for(lambda: not processes_of(tmp_path))
    assert not (tmp_path / "cluster.json").exists() or end == "kill"


def test_the_command_decides_the_exit_code(tmp_path):
    folder = ["--folder", str(tmp_path)]
    failing = ["sh", "-c", "exit 7"]
    assert subprocess.run([sys.executable, str(SCRIPT), "run", *folder, "--", *failing]).returncode == 7
