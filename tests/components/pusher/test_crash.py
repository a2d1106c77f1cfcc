"""Pushes stopped at each file operation in five ways: only complete versions remain, and a rerun succeeds.

Each test runs some hundred pushes in processes of their own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from detloom.components.pusher import push as pusher_push

ROOT = Path(pusher_push.__file__).parents[2]


def stop_at_every_step(model, other_model, work_dir, mode, action):
    program = Path(__file__).with_name("crash_at_every_step.py")
    done = subprocess.run(
        [sys.executable, program, model, other_model, work_dir, mode, action],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param("kill", marks=[pytest.mark.reliability("kill", "push"), pytest.mark.slow]),
        pytest.param("full", marks=[pytest.mark.reliability("full disk", "push"), pytest.mark.slow]),
        pytest.param("read_only", marks=[pytest.mark.reliability("read-only", "push"), pytest.mark.slow]),
        pytest.param("error", marks=pytest.mark.nightly),
        pytest.param("interrupt", marks=pytest.mark.nightly),
    ],
)
def test_interrupted_push_leaves_only_complete_versions_and_a_rerun_succeeds(mode, model, other_model, tmp_path):
    steps = stop_at_every_step(model, other_model, tmp_path, mode, "push")
    assert len(steps) > 60  # far fewer would mean that the operations are not observed
    for step in steps:
        assert step["after_stop"]["broken"] == [], step
        assert 300 in step["after_stop"]["whole"], step  # the served version still exists
        assert step["is_right"], step
        assert step["after_rerun"] in (
            {"whole": [300, 1000], "broken": [], "debris": []},
            {"whole": [300, 2000], "broken": [], "debris": []},
        ), step
        assert step["recorded"] == [100, 200, 300, step["version"]], step
        if mode in ("error", "full", "interrupt"):  # the process survived and could remove its copy
            assert not [name for name in step["after_stop"]["debris"] if name.startswith(".push-")], step
    # Some attempts were stopped before the rename, some after it.
    assert {step["version"] for step in steps} == {1000, 2000}


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param("kill", marks=[pytest.mark.reliability("kill", "rollback"), pytest.mark.slow]),
        pytest.param("full", marks=[pytest.mark.reliability("full disk", "rollback"), pytest.mark.nightly]),
        pytest.param("read_only", marks=[pytest.mark.reliability("read-only", "rollback"), pytest.mark.nightly]),
    ],
)
def test_interrupted_rollback_leaves_only_complete_versions_and_a_rerun_succeeds(mode, model, other_model, tmp_path):
    steps = stop_at_every_step(model, other_model, tmp_path, mode, "rollback")
    assert len(steps) > 60
    for step in steps:
        assert step["after_stop"]["broken"] == [], step
        assert {100, 200} <= set(step["after_stop"]["whole"]), step
        assert step["is_right"], step
        assert step["after_rerun"]["broken"] == step["after_rerun"]["debris"] == [], step
        assert step["recorded"] == [100, 200, step["version"]], step
    assert {step["version"] for step in steps} == {1000, 2000}
