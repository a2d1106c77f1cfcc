"""Pushes to a storage without rename."""

import contextlib
import functools
import itertools
import shutil

import pytest

from detloom.components.pusher import object_store
from detloom.components.pusher.atomic_push import list_versions, push_model, read_records, roll_back
from detloom.components.pusher.locks import ClaimLock
from detloom.components.pusher.manifest import MANIFEST_FILE, build_manifest, find_files
from detloom.components.pusher.versions import describe_versions, open_destination, verify_version
from detloom.schemas.errors import InputError

SERVING = "objects://bucket/serving"


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Replace the clock of the lock by one that advances only by sleeping."""
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    monkeypatch.setattr(object_store, "ClaimLock", functools.partial(ClaimLock, clock=lambda: now[0], sleep=sleep))
    return now


def no_check(folder):
    """Accept every copy."""


def push(model_dir, at, **options):
    return push_model(model_dir, SERVING, **{"check": no_check, "now": lambda: at, **options})


def stored(objects):
    return sorted(path.relative_to(objects.root).as_posix() for path in objects.root.rglob("*") if path.is_file())


def test_saved_model_is_written_after_all_other_files(model, objects):
    result = push(model, 100.0)
    assert (result.version, result.address, result.is_new) == (100, f"{SERVING}/100", True)
    written = [entry.removeprefix(f"put {SERVING}/") for entry in objects.operations if entry.startswith("put ")]
    assert [name for name in written if name.startswith("100/")] == [
        "100/assets/label_map.pbtxt",
        "100/variables/variables.index",
        f"100/{MANIFEST_FILE}",
        "100/saved_model.pb",
    ]
    assert stored(objects) == [
        "bucket/serving/100/assets.extra/push_manifest.json",
        "bucket/serving/100/assets/label_map.pbtxt",
        "bucket/serving/100/saved_model.pb",
        "bucket/serving/100/variables/variables.index",
        "bucket/serving/push_record.jsonl",
    ]


def test_copy_is_loaded_before_any_of_its_files_is_uploaded(model, objects):
    seen = []

    def check(folder):
        seen.append((folder / "saved_model.pb").read_bytes())
        assert not (objects.root / "bucket/serving/100").exists()

    push(model, 100.0, check=check)
    assert seen == [b"graph"]


@pytest.mark.parametrize("name", ["saved_model.pb", MANIFEST_FILE])
def test_version_without_manifest_or_model_is_not_complete(name, model, other_model, objects):
    push(model, 100.0)
    push(other_model, 200.0)
    (objects.root / "bucket/serving/200" / name).unlink()
    assert list_versions(SERVING) == [100]
    destination = open_destination(SERVING)
    assert [state.version for state in describe_versions(destination) if state.is_served] == [100]
    assert verify_version(destination, 200) == [f"{name}: is missing" + " or cannot be read" * (name == MANIFEST_FILE)]


def test_pushing_the_latest_model_again_changes_nothing(model, objects):
    push(model, 100.0)
    before = stored(objects)
    assert not push(model, 200.0).is_new
    assert stored(objects) == before


@pytest.mark.reliability("torn file", "push")
@pytest.mark.parametrize("name", ["label_map.pbtxt", "saved_model.pb", "push_manifest.json"])
def test_damaged_object_publishes_nothing_and_is_removed(name, model, other_model, objects):
    push(model, 100.0)
    before = stored(objects)
    objects.damage = name
    with pytest.raises(OSError, match=rf"{name}|manifest"):
        push(other_model, 200.0)
    assert stored(objects) == before
    objects.damage = ""
    assert push(other_model, 300.0).version == 300
    assert list_versions(SERVING) == [100, 300]


def test_rollback_and_removal_of_old_versions(model, other_model, objects):
    push(model, 100.0)
    push(other_model, 200.0)
    result = roll_back(SERVING, reason="bad boxes", check=no_check, now=lambda: 300.0)
    assert (result.version, result.digest) == (300, build_manifest(model).digest)
    push(other_model, 400.0, keep_versions=2)
    assert list_versions(SERVING) == [300, 400]
    assert not [name for name in stored(objects) if "/100/" in name or "/200/" in name or "/." in name]
    assert [record["action"] for record in read_records(SERVING)] == ["push", "push", "rollback", "push"]


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
    with pytest.raises(InputError, match="objects://bucket/serving: "):
        push(model, 100.0)


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
def test_push_that_lost_its_lock_while_loading_keeps_the_versions_of_the_next_owner(
    model, other_model, third_model, objects, clock
):
    push(model, 1.0)

    def suspend(folder):
        clock[0] += 100.0
        assert push(third_model, 1000.0).version == 1001  # 1000 is being written

    with pytest.raises(OSError, match=r"objects://bucket/serving: .*lock"):
        push(other_model, 1000.0, check=suspend)
    destination = open_destination(SERVING)
    assert {version: verify_version(destination, version) for version in list_versions(SERVING)} == {1: [], 1001: []}


@pytest.mark.reliability("lost lease", "push")
def test_push_that_lost_its_lock_between_two_files_changes_nothing_more(
    model, other_model, third_model, objects, clock, monkeypatch
):
    push(model, 1.0)
    read_back = object_store._read_object

    def suspend(storage, name):
        found = read_back(storage, name)
        if name == "1000/assets/label_map.pbtxt":
            clock[0] += 100.0
            push(third_model, 2000.0)
            objects.operations.clear()
        return found

    monkeypatch.setattr(object_store, "_read_object", suspend)
    with pytest.raises(OSError, match=r"objects://bucket/serving: .*lock"):
        push(other_model, 1000.0)
    changes = [entry for entry in objects.operations if entry.startswith(("put", "remove", "rmtree"))]
    assert [entry for entry in changes if "/.push.lock/" not in entry] == []  # except its own claim
    assert list_versions(SERVING) == [1, 2000]


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
