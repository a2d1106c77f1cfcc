"""scripts/flink_cluster.py without a cluster; tests/flink has the tests with one."""

import fcntl
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = Path(__file__).parent.parent / "scripts/flink_cluster.py"
    spec = importlib.util.spec_from_file_location("flink_cluster", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def call(script, monkeypatch, tmp_path):
    def call(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["flink_cluster.py", *arguments])
        return script.main()

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return call


def test_without_a_cluster_status_fails_and_stop_succeeds(call, capsys):
    assert call("status") == 1
    assert call("stop") == 0
    assert capsys.readouterr().err == "flink: no cluster runs.\n" * 2


def test_run_needs_a_command(call, capsys):
    for arguments in (["run"], ["stop", "--", "ls"]):
        with pytest.raises(SystemExit, match="2"):
            call(*arguments)
        assert "needs a command after --" in capsys.readouterr().err


def test_a_job_server_in_the_cache_is_not_built_again(call, script, capsys):
    jar = script.job_server_in_cache("1.19")
    jar.parent.mkdir(parents=True)
    jar.touch()
    assert call("jar") == 0
    assert capsys.readouterr().out == f"{jar}\n"


def test_a_failed_build_leaves_no_file(call, script, tmp_path, monkeypatch, capsys):
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "mvn").write_text("#!/bin/sh\necho no such artifact\nexit 1\n")
    (tools / "java").write_text("#!/bin/sh\n")
    for tool in tools.iterdir():
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    with pytest.raises(SystemExit, match="1"):
        call("jar")
    assert "failed:\nno such artifact" in capsys.readouterr().err
    assert list(script.job_server_in_cache("1.19").parent.iterdir()) == []


def test_a_missing_tool_is_named(call, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="1"):
        call("jar")
    assert capsys.readouterr().err == "flink: needs mvn, java.\n"


def test_the_owner_of_a_folder_is_the_process_that_holds_its_lock(script, tmp_path):
    assert script.find_owner(tmp_path) is None
    lock = tmp_path / "lock"
    lock.write_text("77\n")  # of a process that was killed
    assert script.find_owner(tmp_path) is None
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        print(os.getpid(), file=file, flush=True)
        assert script.find_owner(tmp_path) == os.getpid()
