"""Pushes stopped at each file operation in five ways: only complete versions remain, and a rerun succeeds.

Each test runs some hundred pushes in processes of their own.
"""

import contextlib
import os
import shutil
import sys

import pytest
from faults import stop_at_every_step
from pushes import push, roll_back_at

from detloom.components.pusher.manifest import build_manifest
from detloom.components.pusher.push import list_versions, read_records
from detloom.components.pusher.versions import open_destination, verify_version
from detloom.schemas.errors import InputError


@pytest.fixture
def serving(tmp_path, monkeypatch):
    """Return the push folder; os.fsync, which has no audit event and takes most of the time, only gets an event."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: sys.audit("os.fsync", tmp_path / "serving"))
    return tmp_path / "serving"


@pytest.fixture
def restore(model, other_model, serving):
    """Return a function that restores the folder with the versions 100 and 200."""
    push(model, serving, 100.0)
    push(other_model, serving, 200.0)
    shutil.copytree(serving, serving.with_name("before"))

    def call():
        shutil.rmtree(serving)
        shutil.copytree(serving.with_name("before"), serving)

    return call


def look_at(serving):
    """Return the versions, all of which must be complete, and the leftovers."""
    versions, destination = list_versions(serving), open_destination(serving)
    assert [verify_version(destination, version) for version in versions] == [[]] * len(versions)
    return versions, [path.name for prefix in (".push-*", ".trash-*") for path in serving.glob(prefix)]


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("kill", marks=[pytest.mark.reliability("kill", "push"), pytest.mark.slow]),
        pytest.param("full", marks=[pytest.mark.reliability("full disk", "push"), pytest.mark.slow]),
        pytest.param("read_only", marks=[pytest.mark.reliability("read-only", "push"), pytest.mark.slow]),
        pytest.param("error", marks=pytest.mark.nightly),
        pytest.param("interrupt", marks=pytest.mark.nightly),
    ],
)
def test_interrupted_push_leaves_only_complete_versions_and_a_rerun_succeeds(fault, model, serving, restore):
    versions, step = set(), 0
    for step in stop_at_every_step(serving, lambda: push(model, serving, 1000.0, keep_versions=2), fault):
        left, debris = look_at(serving)
        assert 200 in left, step  # the served version still exists
        if fault in ("error", "full", "interrupt"):  # the process survived and could remove its copy
            assert not [name for name in debris if name.startswith(".push-")], step
        result = push(model, serving, 2000.0, keep_versions=2)
        assert result.digest == build_manifest(model).digest, step
        assert look_at(serving) == ([200, result.version], []), step
        assert [record["version"] for record in read_records(serving)] == [100, 200, result.version], step
        versions.add(result.version)
        restore()
    assert step > 60  # far fewer would mean that the operations are not observed
    assert versions == {1000, 2000}  # some were stopped before the rename, some after it


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("kill", marks=[pytest.mark.reliability("kill", "rollback"), pytest.mark.slow]),
        pytest.param("full", marks=[pytest.mark.reliability("full disk", "rollback"), pytest.mark.nightly]),
        pytest.param("read_only", marks=[pytest.mark.reliability("read-only", "rollback"), pytest.mark.nightly]),
    ],
)
def test_interrupted_rollback_leaves_only_complete_versions_and_a_rerun_succeeds(fault, model, serving, restore):
    versions, step = set(), 0
    for step in stop_at_every_step(serving, lambda: roll_back_at(serving, 1000.0), fault):
        left, _ = look_at(serving)
        assert {100, 200} <= set(left), step
        if 1000 in left:
            with contextlib.suppress(InputError):  # no other model is left to restore
                roll_back_at(serving, 2000.0)
            result = push(model, serving, 3000.0)  # removes leftovers; the model is already served
        else:
            result = roll_back_at(serving, 2000.0)
        assert result.digest == build_manifest(model).digest, step
        left, debris = look_at(serving)
        assert (left[-1], debris) == (result.version, []), step
        assert [record["version"] for record in read_records(serving)] == [100, 200, result.version], step
        versions.add(result.version)
        restore()
    assert step > 60
    assert versions == {1000, 2000}
