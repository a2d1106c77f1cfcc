"""Pushes into a storage without rename."""

import contextlib
import functools
import itertools
import shutil

import pytest

from detloom.components.pusher import object_store
from detloom.components.pusher.atomic_push import list_versions, push_model, read_records, roll_back
from detloom.components.pusher.claim_lock import ClaimLock
from detloom.components.pusher.destination import open_destination
from detloom.components.pusher.manifest import MANIFEST_FILE, build_manifest
from detloom.components.pusher.versions import verify_version
from detloom.schemas.errors import InputError

SERVING = "objects://bucket/serving"


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A clock that goes on by sleeping alone."""
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    monkeypatch.setattr(object_store, "ClaimLock", functools.partial(ClaimLock, clock=lambda: now[0], sleep=sleep))
    return now


def no_check(folder):
    """Loading is tested elsewhere."""


def push(model_dir, at, **options):
    return push_model(model_dir, SERVING, **{"check": no_check, "now": lambda: at, **options})


def stored(objects):
    return sorted(path.relative_to(objects.root).as_posix() for path in objects.root.rglob("*") if path.is_file())


def test_a_version_is_written_with_its_model_next_to_last_and_its_manifest_last(model, objects):
    result = push(model, 100.0)
    assert (result.version, result.address, result.is_new) == (100, f"{SERVING}/100", True)
    written = [entry.removeprefix(f"put {SERVING}/") for entry in objects.operations if entry.startswith("put ")]
    assert [name for name in written if name.startswith("100/")] == [
        "100/assets/label_map.pbtxt",
        "100/variables/variables.index",
        "100/saved_model.pb",
        f"100/{MANIFEST_FILE}",
    ]
    assert stored(objects) == [
        "bucket/serving/100/assets.extra/push_manifest.json",
        "bucket/serving/100/assets/label_map.pbtxt",
        "bucket/serving/100/saved_model.pb",
        "bucket/serving/100/variables/variables.index",
        "bucket/serving/push_record.jsonl",
    ]


def test_the_copy_is_loaded_from_what_the_storage_gives_back_before_its_model_is_there(model, objects):
    seen = []

    def check(folder):
        seen.append((folder / "saved_model.pb").read_bytes())
        assert not (objects.root / "bucket/serving/100/saved_model.pb").exists()

    push(model, 100.0, check=check)
    assert seen == [b"graph"]


def test_a_version_without_manifest_is_not_there_for_a_reader(model, other_model, objects):
    push(model, 100.0)
    push(other_model, 200.0)
    (objects.root / "bucket/serving/200" / MANIFEST_FILE).unlink()
    assert list_versions(SERVING) == [100]


def test_the_same_model_again_changes_nothing(model, objects):
    push(model, 100.0)
    before = stored(objects)
    assert not push(model, 200.0).is_new
    assert stored(objects) == before


@pytest.mark.parametrize("name", ["label_map.pbtxt", "saved_model.pb", "push_manifest.json"])
def test_an_object_that_is_stored_wrong_is_no_version_and_leaves_nothing(name, model, other_model, objects):
    push(model, 100.0)
    before = stored(objects)
    objects.damage = name
    with pytest.raises(OSError, match=r"the copy differs from the original|the manifest was not stored as written"):
        push(other_model, 200.0)
    assert stored(objects) == before
    objects.damage = ""
    assert push(other_model, 300.0).version == 300
    assert list_versions(SERVING) == [100, 300]


def test_a_rollback_and_old_versions(model, other_model, objects):
    push(model, 100.0)
    push(other_model, 200.0)
    result = roll_back(SERVING, reason="bad boxes", check=no_check, now=lambda: 300.0)
    assert (result.version, result.digest) == (300, build_manifest(model).digest)
    push(other_model, 400.0, keep_versions=2)
    assert list_versions(SERVING) == [300, 400]
    assert not [name for name in stored(objects) if "/100/" in name or "/200/" in name or "/." in name]
    assert [record["action"] for record in read_records(SERVING)] == ["push", "push", "rollback", "push"]


def test_an_object_that_would_leave_the_folder_it_is_copied_to_is_refused(model, other_model, objects, monkeypatch):
    push(model, 100.0)
    push(other_model, 200.0)
    walk = objects.walk

    def with_an_evil_name(top, **options):
        yield from walk(top, **options)
        yield f"{top}/../..", [], ["evil"]

    monkeypatch.setattr(objects, "walk", with_an_evil_name)
    with pytest.raises(InputError, match="allowed: names inside the folder"):
        roll_back(SERVING, reason="x", to=100, check=no_check)


def test_a_storage_that_is_not_there_is_one_sentence(model, objects):
    objects.fail_at = 1
    with pytest.raises(InputError, match="objects://bucket/serving: models cannot be pushed here"):
        push(model, 100.0)


@pytest.mark.parametrize("mode", ["stop_at", "fail_at"])
def test_stopped_at_any_operation_readers_see_complete_versions_and_a_rerun_succeeds(
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
    assert number > 60  # far fewer would mean that the operations are not seen
    assert versions == {1000, 2000}


def test_a_push_that_lost_its_lock_while_loading_leaves_the_versions_of_the_next_owner(
    model, other_model, third_model, objects, clock
):
    push(model, 1.0)

    def stand_still(folder):
        clock[0] += 100.0
        assert push(third_model, 1000.0).version == 1001  # 1000 is being written

    with pytest.raises(OSError, match="stood still for so long that its lock is lost"):
        push(other_model, 1000.0, check=stand_still)
    destination = open_destination(SERVING)
    assert {version: verify_version(destination, version) for version in list_versions(SERVING)} == {1: [], 1001: []}


def test_a_push_that_lost_its_lock_between_two_files_writes_and_removes_nothing_more(
    model, other_model, third_model, objects, clock, monkeypatch
):
    push(model, 1.0)
    read_back = object_store.ObjectStore._read_back

    def stand_still(self, name, copy):
        found = read_back(self, name, copy)
        if name == "1000/assets/label_map.pbtxt":
            clock[0] += 100.0
            push(third_model, 2000.0)
            objects.operations.clear()
        return found

    monkeypatch.setattr(object_store.ObjectStore, "_read_back", stand_still)
    with pytest.raises(OSError, match="its lock is lost"):
        push(other_model, 1000.0)
    changes = [entry for entry in objects.operations if entry.startswith(("put", "remove", "rmtree"))]
    assert [entry for entry in changes if "/.push.lock/" not in entry] == []  # but its own claim
    assert list_versions(SERVING) == [1, 2000]


def test_a_push_that_lost_its_lock_does_not_touch_a_version_of_its_own_number(model, other_model, objects):
    def lost():
        raise OSError("lost")

    push(model, 1000.0)
    store, before = open_destination(SERVING), stored(objects)
    sources = {"saved_model.pb": other_model / "saved_model.pb"}
    with pytest.raises(OSError, match="lost"):
        store.place(1000, sources, build_manifest(other_model), no_check, lost)
    assert stored(objects) == before
    assert verify_version(store, 1000) == []
