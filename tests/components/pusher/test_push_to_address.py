"""Pushes to an address without a lock, such as hdfs://, by a single writer."""

import contextlib
import itertools
import re
import shutil

import pytest

from detloom.components.pusher.manifest import MANIFEST_FILE, build_manifest, find_files
from detloom.components.pusher.push import list_versions, push_model, read_records, roll_back
from detloom.components.pusher.versions import describe_versions, open_destination, verify_version
from detloom.schemas.errors import InputError

SERVING = "objects://bucket/serving"


def no_check(folder):
    """Accept every copy."""


def push(model_dir, at, **options):
    return push_model(model_dir, SERVING, **{"check": no_check, "now": lambda: at, **options})


def stored(objects):
    return sorted(path.relative_to(objects.root).as_posix() for path in objects.root.rglob("*") if path.is_file())


def test_saved_model_is_written_after_all_other_files(model, objects):
    result = push(model, 100.0)
    assert (result.version, result.address, result.is_new) == (100, f"{SERVING}/100", True)
    # Each file appears by a rename: a model server must not load one that is half written.
    written = [re.sub(r"/\.([^/]+)\.[0-9a-f]{12}$", r"/\1", entry) for entry in objects.operations if "rename" in entry]
    assert [entry for entry in written if "/100/" in entry] == [
        f"rename {SERVING}/100/assets/label_map.pbtxt",
        f"rename {SERVING}/100/variables/variables.index",
        f"rename {SERVING}/100/{MANIFEST_FILE}",
        f"rename {SERVING}/100/saved_model.pb",
    ]
    assert not [entry for entry in objects.operations if entry.startswith(f"put {SERVING}/100/saved_model.pb")]
    assert stored(objects) == [
        "bucket/serving/100/assets.extra/push_manifest.json",
        "bucket/serving/100/assets/label_map.pbtxt",
        "bucket/serving/100/saved_model.pb",
        "bucket/serving/100/variables/variables.index",
        "bucket/serving/push_record.jsonl",
    ]


@pytest.mark.parametrize("name", ["saved_model.pb", MANIFEST_FILE])
def test_version_without_manifest_or_model_is_not_complete(name, model, other_model, objects):
    push(model, 100.0)
    push(other_model, 200.0)
    (objects.root / "bucket/serving/200" / name).unlink()
    assert list_versions(SERVING) == [100]
    destination = open_destination(SERVING)
    assert [state.version for state in describe_versions(destination) if state.is_served] == [100]
    assert verify_version(destination, 200) == [f"{name}: is missing" + " or cannot be read" * (name == MANIFEST_FILE)]


@pytest.mark.reliability("hostile input", "rollback")
def test_object_name_that_leaves_its_folder_is_refused(model, other_model, objects, monkeypatch):
    push(model, 100.0)
    push(other_model, 200.0)
    listdir = objects.listdir
    monkeypatch.setattr(objects, "listdir", lambda path: listdir(path) + [".."] * path.endswith("/100"))
    with pytest.raises(InputError, match=r"objects://bucket/serving/100: .*\.\."):
        roll_back(SERVING, reason="x", to=100, check=no_check)


def test_unreachable_storage_is_reported_with_the_address(model, objects):
    objects.fail_at = 1
    with pytest.raises(OSError, match="not available") as error:
        push(model, 100.0)
    assert error.value.filename is None or SERVING in error.value.filename


@pytest.mark.slow  # a push for each of some hundred operations
@pytest.mark.parametrize("mode", [pytest.param("stop_at", marks=pytest.mark.reliability("kill", "push")), "fail_at"])
def test_push_stopped_at_any_operation_leaves_complete_versions_and_a_rerun_succeeds(
    mode, model, other_model, objects, tmp_path
):
    wanted, versions = build_manifest(other_model).digest, set()
    push(model, 100.0)
    push(other_model, 200.0)
    push(model, 300.0)
    before = objects.root
    for number in itertools.count(1):
        objects.root, objects.operations = tmp_path / f"{mode}{number}", []
        shutil.copytree(before, objects.root)
        setattr(objects, mode, number)
        with contextlib.suppress(OSError, InputError, objects.Stopped):
            push(other_model, 1000.0, keep_versions=2)
        num_operations = len(objects.operations)
        objects.stop_at = objects.fail_at = 0
        destination = open_destination(SERVING)
        after = list_versions(SERVING)
        assert 300 in after, number
        assert max(after) in (300, 1000), number
        assert [verify_version(destination, version) for version in after[-2:]] == [[], []], number
        result = push(other_model, 2000.0, keep_versions=2)
        assert result.digest == wanted, number
        assert list_versions(SERVING) == [300, result.version], number
        left = {name.split("/")[2] for name in stored(objects)}
        assert left == {"300", str(result.version), "push_record.jsonl"}, number
        assert [record["version"] for record in read_records(SERVING)] == [100, 200, 300, result.version], number
        versions.add(result.version)
        if num_operations < number:
            break
    assert number > 60  # far fewer would mean that the operations are not observed
    assert versions == {1000, 2000}


@pytest.mark.reliability("lost lease", "push")
def test_push_that_lost_its_lock_does_not_touch_a_version_with_its_number(model, other_model, objects):
    def lost():
        raise OSError("lost")

    push(model, 1000.0)
    store, before = open_destination(SERVING), stored(objects)
    with pytest.raises(OSError, match="lost"):
        store.place(1000, find_files(other_model), build_manifest(other_model), no_check, lost)
    assert stored(objects) == before
    assert verify_version(store, 1000) == []
