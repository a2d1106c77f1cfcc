import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from detloom.components.pusher import atomic_push
from detloom.components.pusher.atomic_push import (
    MANIFEST_FILE,
    RECORD_FILE,
    build_manifest,
    list_versions,
    push_model,
    read_manifest,
    read_records,
)
from detloom.schemas.errors import InputError


def make_model(folder, content=b"graph"):
    (folder / "variables").mkdir(parents=True)
    (folder / "assets").mkdir()
    (folder / "saved_model.pb").write_bytes(content)
    (folder / "variables" / "variables.index").write_bytes(b"index")
    (folder / "assets" / "label_map.pbtxt").write_bytes(b"item { id: 1 name: 'cat' }")
    return folder


@pytest.fixture
def model(tmp_path):
    return make_model(tmp_path / "model")


@pytest.fixture
def other_model(tmp_path):
    return make_model(tmp_path / "other_model", b"another graph")


def push(model_dir, push_dir, at=1000.0):
    return push_model(model_dir, push_dir, model_uri=f"uri of {model_dir.name}", now=lambda: at)


def test_the_version_is_the_time_and_holds_the_model_with_its_manifest(model, tmp_path):
    result = push(model, tmp_path / "serving", at=1234.9)
    assert (result.version, result.is_new, result.previous_version) == (1234, True, None)
    assert result.path == tmp_path / "serving" / "1234"
    names = sorted(path.relative_to(result.path).as_posix() for path in result.path.rglob("*") if path.is_file())
    assert names == [MANIFEST_FILE, "assets/label_map.pbtxt", "saved_model.pb", "variables/variables.index"]
    assert read_manifest(result.path) == build_manifest(model)


def test_versions_grow_even_when_the_clock_goes_back(model, other_model, tmp_path):
    push(model, tmp_path / "serving", at=1000.0)
    result = push(other_model, tmp_path / "serving", at=500.0)
    assert (result.version, result.previous_version) == (1001, 1000)


def test_pushing_the_latest_model_again_changes_nothing(model, tmp_path):
    push(model, tmp_path / "serving", at=1000.0)
    result = push(model, tmp_path / "serving", at=2000.0)
    assert (result.version, result.is_new) == (1000, False)
    assert list_versions(tmp_path / "serving") == [1000]
    assert len(read_records(tmp_path / "serving")) == 1


def test_going_back_to_an_earlier_model_is_a_new_version(model, other_model, tmp_path):
    push(model, tmp_path / "serving", at=1.0)
    push(other_model, tmp_path / "serving", at=2.0)
    assert push(model, tmp_path / "serving", at=3.0).version == 3


def test_a_damaged_latest_version_is_pushed_anew(model, tmp_path):
    first = push(model, tmp_path / "serving", at=1000.0)
    (first.path / "saved_model.pb").write_bytes(b"grapX")
    result = push(model, tmp_path / "serving", at=2000.0)
    assert (result.version, result.is_new) == (2000, True)


def test_a_version_that_somebody_else_put_there_is_left_alone(model, tmp_path):
    make_model(tmp_path / "serving" / "9999")
    assert push(model, tmp_path / "serving", at=1.0).version == 10000
    assert list_versions(tmp_path / "serving") == [9999, 10000]


def test_each_push_is_recorded_in_one_line(model, other_model, tmp_path):
    push(model, tmp_path / "serving", at=60.0)
    push(other_model, tmp_path / "serving", at=3600.0)
    assert read_records(tmp_path / "serving") == [
        {
            "time": "1970-01-01T00:01:00+00:00",
            "version": 60,
            "model_uri": "uri of model",
            "manifest_sha256": build_manifest(model).digest,
            "previous_version": None,
        },
        {
            "time": "1970-01-01T01:00:00+00:00",
            "version": 3600,
            "model_uri": "uri of other_model",
            "manifest_sha256": build_manifest(other_model).digest,
            "previous_version": 60,
        },
    ]


def test_a_cut_off_record_line_does_not_swallow_the_next(model, other_model, tmp_path):
    push(model, tmp_path / "serving", at=1.0)
    with open(tmp_path / "serving" / RECORD_FILE, "a") as file:
        file.write('{"version": 2, "mod')
    push(other_model, tmp_path / "serving", at=3.0)
    assert [record["version"] for record in read_records(tmp_path / "serving")] == [1, 3]


def test_leftovers_of_a_killed_push_are_removed(model, tmp_path):
    make_model(tmp_path / "serving" / ".push-77")
    push(model, tmp_path / "serving")
    assert sorted(path.name for path in (tmp_path / "serving").iterdir()) == [".push.lock", "1000", RECORD_FILE]


def test_the_server_user_may_read_the_version(model, tmp_path):
    previous = os.umask(0o022)
    try:
        result = push(model, tmp_path / "serving")
    finally:
        os.umask(previous)
    assert stat.S_IMODE(result.path.stat().st_mode) == 0o755
    assert stat.S_IMODE((result.path / "saved_model.pb").stat().st_mode) == 0o644


def test_a_copy_that_differs_is_not_served(model, other_model, tmp_path, monkeypatch):
    push(model, tmp_path / "serving", at=1.0)

    def copy_badly(source, target):
        Path(target).write_bytes(Path(source).read_bytes()[:-1] + b"?")

    with monkeypatch.context() as patch:
        patch.setattr(atomic_push.shutil, "copyfile", copy_badly)
        with pytest.raises(OSError, match=r"the copy differs from the original in \['assets/label_map.pbtxt'"):
            push(other_model, tmp_path / "serving", at=2.0)
    assert list_versions(tmp_path / "serving") == [1]
    assert not list((tmp_path / "serving").glob(".push-*"))
    assert push(other_model, tmp_path / "serving", at=2.0).is_new


@pytest.mark.parametrize("mode", ["kill", "error"])
def test_stopped_at_any_file_operation_only_whole_versions_are_there_and_a_rerun_succeeds(
    mode, model, other_model, tmp_path
):
    program = Path(__file__).with_name("crash_at_every_step.py")
    root = Path(atomic_push.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, program, model, other_model, tmp_path, mode],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert done.returncode == 0, done.stderr
    steps = json.loads(done.stdout)
    assert len(steps) > 25  # far fewer would mean that the operations are not seen
    for step in steps:
        assert step["after_stop"]["broken"] == [], step
        assert step["after_stop"]["whole"][0] == 100, step
        assert step["is_right"], step
        assert step["after_rerun"]["debris"] == [], step
        assert step["after_rerun"]["whole"] in ([100, 1000], [100, 2000]), step
        assert step["recorded"] == step["after_rerun"]["whole"], step
    # Both ends were reached: stopped before the rename, and after it.
    assert {step["version"] for step in steps} == {1000, 2000}


def test_a_folder_without_model_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty: no SavedModel to push"):
        push(tmp_path / "empty", tmp_path / "serving")
    assert not (tmp_path / "serving").exists()


def test_a_destination_that_is_a_file_is_refused(model, tmp_path):
    (tmp_path / "serving").write_text("")
    with pytest.raises(InputError, match="serving: models cannot be pushed here"):
        push(model, tmp_path / "serving")


def test_a_model_pushed_from_a_version_folder_has_the_same_digest(model, tmp_path):
    first = push(model, tmp_path / "a")
    shutil.copytree(first.path, tmp_path / "copy")
    assert push(tmp_path / "copy", tmp_path / "b").digest == first.digest
