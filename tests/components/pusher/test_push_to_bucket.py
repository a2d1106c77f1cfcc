"""Pushes to Cloud Storage and to S3, with servers that count, refuse, lose and delay requests."""

import contextlib
import functools
import json
import re
import threading
import time

import pushes
import pytest
import tiny_onnx
from clock import Clock
from pushes import roll_back_at

from detloom.components.pusher import bucket_lock, push_to_bucket
from detloom.components.pusher.bucket_lock import BucketLock
from detloom.components.pusher.manifest import MANIFEST_FILE, Origin, build_manifest
from detloom.components.pusher.push import list_versions, read_records
from detloom.components.pusher.triton_config import format_triton_config
from detloom.components.pusher.versions import describe_versions, local_model, open_destination, verify_version
from detloom.components.storage import bucket as bucket_module
from detloom.components.storage.bucket import BucketStorage
from detloom.components.storage.storage import open_storage
from detloom.schemas.errors import InputError
from detloom.trainer_module.inference.model_files import read_evaluated_forms

GRAPHS = {b"graph", b"another graph", b"a third graph"}  # of the fixtures' models


@pytest.fixture
def clock(monkeypatch):
    """Replace the clock of the lock."""
    clock = Clock()
    monkeypatch.setattr(push_to_bucket, "BucketLock", functools.partial(BucketLock, clock=clock, sleep=clock.sleep))
    return clock


@pytest.fixture
def serving(request):
    """Return the address of the push folder; tests/components/storage compares the single operations at gs and s3."""
    return f"{getattr(request, 'param', 'gs')}://bucket/serving"


@pytest.fixture
def plain_bucket(serving, make_bucket):
    """Return the bucket, with the real clock."""
    return make_bucket(serving[:2])


@pytest.fixture
def push(serving):
    """Return a function that pushes a model without loading it."""

    return lambda model_dir, at, **options: pushes.push(model_dir, serving, at, **options)


@pytest.fixture
def bucket(plain_bucket, clock):
    """Return a bucket in which a model server must find a complete model after each request, once it has found one."""
    served, faults = [], []

    def serve():  # in a thread of the server
        version = None
        with contextlib.suppress(AssertionError, KeyError, ValueError):
            version = serve_highest_version(plain_bucket.contents())
        if version is not None:
            served.append(version)
        elif served:
            faults.append(plain_bucket.requests[-1])

    plain_bucket.after_request = serve
    yield plain_bucket
    assert faults == []


def serve_highest_version(contents):
    """Return the highest version with a saved_model.pb, as a model server loads it, or None; check that it is complete.

    TensorFlow Serving takes the highest number, keeps the model before it until that one is loaded, and cannot load a
    version without saved_model.pb.
    """
    numbers = [int(match[1]) for name in contents if (match := re.fullmatch(r"serving/(\d+)/saved_model.pb", name))]
    if not numbers:
        return None
    prefix = f"serving/{max(numbers)}/"
    files = {name.removeprefix(prefix): content for name, content in contents.items() if name.startswith(prefix)}
    manifest = json.loads(files.pop(MANIFEST_FILE))
    assert files.keys() == manifest["files"].keys()
    graph = files.pop("saved_model.pb")
    assert graph in GRAPHS
    weights = b"weights of " + graph
    assert files == {"assets/label_map.pbtxt": b"item { id: 1 name: 'cat' }", "variables/variables.index": weights}
    return max(numbers)


@pytest.mark.usefixtures("plain_bucket")
def test_the_copy_that_is_served_names_the_evaluated_forms(model, push, serving):
    push(model, 100.0, origin=Origin(model_uri="m", blessing={"blessed": True, "forms": ["saved_model", "onnx"]}))
    with local_model(serving) as folder:
        assert read_evaluated_forms(str(folder)) == ("saved_model", "onnx")


@pytest.mark.parametrize("serving", ["gs", "s3"], indirect=True)
def test_files_are_copied_from_a_hidden_name_and_saved_model_last(model, bucket, push, serving):
    result = push(model, 100.0)
    assert (result.version, result.address, result.is_new) == (100, f"{serving}/100", True)
    copies = [request for request in bucket.requests if request.startswith("PUT /bucket/serving/100/")]
    targets = [request.removeprefix("PUT /bucket/serving/") for request in copies]
    assert targets == [
        "100/assets/label_map.pbtxt",
        "100/variables/variables.index",
        f"100/{MANIFEST_FILE}",
        "100/saved_model.pb",
    ]
    assert list(bucket.contents()) == [
        "serving/.push.lock",
        "serving/100/assets.extra/push_manifest.json",
        "serving/100/assets/label_map.pbtxt",
        "serving/100/saved_model.pb",
        "serving/100/variables/variables.index",
        "serving/push_record.jsonl",
    ]
    assert serve_highest_version(bucket.contents()) == 100


def test_copy_is_loaded_before_any_of_its_files_is_uploaded(model, bucket, push):
    def check(folder):
        assert (folder / "saved_model.pb").read_bytes() == b"graph"
        assert list(bucket.contents()) == ["serving/.push-100/owner.json", "serving/.push.lock"]

    push(model, 100.0, check=check)


def refuse(folder):
    raise InputError("bad")


def change(folder):
    (folder / "variables/variables.index").write_bytes(b"changed")


@pytest.mark.parametrize(
    ("check", "error", "message"), [(refuse, InputError, "bad"), (change, OSError, r"variables\.index")]
)
def test_model_that_fails_the_load_check_or_is_changed_by_it_is_not_uploaded(
    check, error, message, model, bucket, push
):
    with pytest.raises(error, match=message):
        push(model, 100.0, check=check)
    assert bucket.contents() == {"serving/.push.lock": b""}


@pytest.mark.reliability("torn file", "push")
@pytest.mark.parametrize("name", ["label_map.pbtxt", "saved_model.pb", "push_manifest.json"])
def test_damaged_upload_publishes_nothing_and_is_removed(name, model, other_model, bucket, push, serving):
    push(model, 100.0)
    before = bucket.contents()
    bucket.damage = name
    with pytest.raises(OSError, match=name):
        push(other_model, 200.0)
    assert bucket.contents() == before
    bucket.damage = ""
    assert push(other_model, 300.0).version == 300
    assert list_versions(serving) == [100, 300]


@pytest.mark.parametrize("name", ["saved_model.pb", MANIFEST_FILE])
def test_version_without_manifest_or_model_is_not_complete(name, model, other_model, plain_bucket, push, serving):
    push(model, 100.0)
    push(other_model, 200.0)
    del plain_bucket.objects[f"serving/200/{name}"]
    assert list_versions(serving) == [100]
    destination = open_destination(serving)
    assert [state.version for state in describe_versions(destination) if state.is_served] == [100]
    assert verify_version(destination, 200) == [f"{name}: is missing" + " or cannot be read" * (name == MANIFEST_FILE)]


def test_rollback_and_removal_of_old_versions(model, other_model, bucket, push, serving):
    push(model, 100.0)
    push(other_model, 200.0)
    result = roll_back_at(serving, 300.0)
    assert (result.version, result.digest) == (300, build_manifest(model).digest)
    bucket.requests.clear()
    push(other_model, 400.0, keep_versions=2)
    assert list_versions(serving) == [300, 400]
    assert [record["version"] for record in read_records(serving)] == [100, 200, 300, 400]
    deleted = [request for request in bucket.requests if request.startswith("DELETE") and "/serving/200/" in request]
    assert deleted[0].partition("?")[0].endswith("/200/saved_model.pb")


def test_triton_reads_the_bucket_too(model, other_model, plain_bucket, push, serving):
    tiny_onnx.write_tiny_onnx(model)
    push(model, 1.0)
    config = open_storage(serving).read("config.pbtxt")
    assert config == format_triton_config({"model.onnx": model / "model.onnx"})
    push(other_model, 2.0)
    assert open_storage(serving).read("config.pbtxt") == config


@pytest.mark.reliability("concurrent runs", "push")
def test_lock_is_one_object_and_the_bucket_is_not_changed_while_another_process_has_it(model, bucket, push, serving):
    other = BucketLock(open_storage(serving), "{}", clock=lambda: 0.0)
    other.acquire(0.0)
    before = bucket.contents()
    assert list(before) == ["serving/.push.lock"]
    with pytest.raises(InputError, match=rf"{serving}: .*still in progress"):
        push(model, 100.0, lock_seconds=0.0)
    assert bucket.contents() == before


@pytest.mark.reliability("lost lease", "push")
def test_push_that_lost_its_lock_while_loading_writes_nothing_more(
    model, other_model, third_model, bucket, clock, push, serving
):
    push(model, 1.0)

    def suspend(folder):
        clock.sleep(100.0)
        assert push(third_model, 1000.0).version == 1001  # 1000 is in use
        bucket.requests.clear()

    with pytest.raises(OSError, match=rf"{serving}: .*lock"):
        push(other_model, 1000.0, check=suspend)
    changes = [request for request in bucket.requests if not request.startswith(("GET", "HEAD"))]
    assert set(changes) == {"PUT /bucket/serving/.push.lock"}  # only the refused renewal of its lock
    assert list_versions(serving) == [1, 1001]
    assert serve_highest_version(bucket.contents()) == 1001


@pytest.mark.reliability("lost lease", "push")
@pytest.mark.parametrize("name", ["assets/label_map.pbtxt", "saved_model.pb"])
def test_push_that_lost_its_lock_between_two_copies_publishes_nothing(
    name, model, other_model, third_model, bucket, clock, monkeypatch, push, serving
):
    """The owner is suspended between `check_held` and the copy, so that only the storage can refuse the copy."""
    push(model, 1.0)
    copy = BucketStorage.copy

    def suspend(self, path, new_path):
        if new_path == f"1000/{name}":
            clock.sleep(100.0)
            push(third_model, 2000.0)
        copy(self, path, new_path)

    monkeypatch.setattr(BucketStorage, "copy", suspend)
    with pytest.raises(OSError, match=f"{serving}/"):
        push(other_model, 1000.0)
    assert {each.split("/")[1] for each in bucket.contents()} == {".push.lock", "1", "2000", "push_record.jsonl"}
    assert list_versions(serving) == [1, 2000]


@pytest.mark.reliability("lost lease", "push")
def test_push_that_lost_its_lock_after_publishing_changes_neither_record_nor_versions(
    model, other_model, third_model, bucket, clock, monkeypatch, push, serving
):
    push(third_model, 1.0)
    push(model, 2.0)
    delete_tree = BucketStorage.delete_tree

    def suspend(self, path):
        delete_tree(self, path)
        if path == ".push-1000":
            clock.sleep(100.0)
            assert push(third_model, 2000.0).previous_version == 1000

    monkeypatch.setattr(BucketStorage, "delete_tree", suspend)
    push(other_model, 1000.0, keep_versions=2)
    assert list_versions(serving) == [1, 2, 1000, 2000]
    assert [record["version"] for record in read_records(serving)] == [1, 2, 1000, 2000]


@pytest.mark.reliability("concurrent runs", "push")
def test_of_two_simultaneous_pushes_one_waits_for_the_other(
    model, other_model, plain_bucket, monkeypatch, push, serving
):
    monkeypatch.setattr(bucket_lock, "_POLL_SECONDS", 0.01)
    is_loading, results = threading.Event(), []

    def check(folder):
        is_loading.set()
        time.sleep(0.05)  # so that the second push finds the lock

    first = threading.Thread(target=lambda: results.append(push(model, 100.0, check=check)))
    first.start()
    assert is_loading.wait(10.0)
    results.append(push(other_model, 100.0))
    first.join()
    assert [result.version for result in results] == [100, 101]
    assert list_versions(serving) == [100, 101]
    assert [record["previous_version"] for record in read_records(serving)] == [None, 100]


def test_unreachable_bucket_is_reported_with_its_address(model, plain_bucket, serving):
    missing = serving.replace("bucket", "missing")
    with pytest.raises(InputError, match=f"{missing}: "):
        pushes.push(model, missing)


@pytest.mark.parametrize("condition", ["If-None-Match", "If-Match"])
def test_server_that_ignores_a_condition_is_refused(model, s3_bucket, condition):
    s3_bucket.ignored_condition = condition
    with pytest.raises(InputError, match=f"s3://bucket/serving: .*ignores {condition},"):
        pushes.push(model, "s3://bucket/serving")
    assert s3_bucket.contents() == {"serving/.push.lock": b""}


@pytest.fixture
def pushed_before(model, third_model, bucket, push):
    """Return a function that restores the bucket with the versions 100 and 300."""
    push(third_model, 100.0)
    push(model, 300.0)
    before = dict(bucket.objects)

    def restore():
        bucket.objects, bucket.is_stopped, bucket.faults = dict(before), False, {}
        bucket.requests.clear()
        bucket.stalled.clear()
        bucket.stalled_done.clear()

    restore()
    return restore


@pytest.fixture
def check_push_with_fault(bucket, other_model, push, serving):
    """Return a function that pushes with a fault that ends the push, and again, and returns the version.

    It checks what a server and a reader find.
    """

    def call(number, fault):
        bucket.faults = {number: fault}
        with contextlib.suppress(OSError, InputError):
            push(other_model, 1000.0, keep_versions=2)
        bucket.is_stopped = False
        served = serve_highest_version(bucket.contents())
        assert served in (300, 1000), number
        assert list_versions(serving)[-1] == served, number
        result = push(other_model, 2000.0, keep_versions=2)
        assert result.digest == build_manifest(other_model).digest, number
        assert list_versions(serving) == [300, result.version], number
        left = {name.split("/")[1] for name in bucket.contents()}
        assert left == {".push.lock", "300", str(result.version), "push_record.jsonl"}, number
        assert [record["version"] for record in read_records(serving)] == [100, 300, result.version], number
        return result.version

    return call


@pytest.fixture
def num_requests(pushed_before, bucket, other_model, push):
    """Return the number of requests of a push that removes the version 100."""
    push(other_model, 1000.0, keep_versions=2)
    number = len(bucket.requests)
    assert number > 60  # far fewer would mean that the requests are not observed
    return number


@pytest.mark.parametrize(
    ("fault", "every"),
    [
        pytest.param("stop", 11, marks=pytest.mark.reliability("kill", "push")),
        pytest.param("stop", 1, marks=pytest.mark.slow),  # two pushes for each of some hundred requests
        pytest.param("refused", 1, marks=pytest.mark.nightly),
    ],
)
def test_push_that_fails_at_any_request_leaves_a_complete_model_and_a_rerun_succeeds(
    fault, every, pushed_before, num_requests, check_push_with_fault
):
    versions = set()
    for number in range(1, num_requests + 1, every):
        pushed_before()
        versions.add(check_push_with_fault(number, fault))
    assert versions == {1000, 2000}


@pytest.fixture
def short_timeouts(monkeypatch):
    """Let clients give up a request without a response after 0.2 s."""
    monkeypatch.setattr(bucket_module, "_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(bucket_module, "_SMALL_FILE_TIMEOUT_SECONDS", 0.2)


FAULTS = ["unavailable", "answer_lost", "stalled"]


@pytest.mark.reliability("store failure", "push")
@pytest.mark.parametrize(
    ("serving", "every"),
    [("gs", 13), pytest.param("gs", 1, marks=pytest.mark.nightly), pytest.param("s3", 1, marks=pytest.mark.nightly)],
    indirect=["serving"],
)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.usefixtures("short_timeouts")
def test_push_succeeds_although_a_request_fails_is_lost_or_late(
    fault, every, pushed_before, num_requests, bucket, other_model, third_model, push, serving
):
    """A late request is executed when the push is over; what it leaves is invisible, and the next push removes it."""
    for number in range(1, num_requests + 1, every):
        pushed_before()
        bucket.faults = {number: fault}
        assert push(other_model, 1000.0, keep_versions=2).version == 1000, number
        if fault == "stalled":
            bucket.release_stalled()
        assert serve_highest_version(bucket.contents()) == 1000, number
        assert push(third_model, 2000.0).version == 2000, number
        left = {name.split("/")[1] for name in bucket.contents()}
        assert left == {".push.lock", "300", "1000", "2000", "push_record.jsonl"}, number
        assert [record["version"] for record in read_records(serving)] == [100, 300, 1000, 2000], number


@pytest.mark.reliability("store failure", "rollback")
@pytest.mark.parametrize("fault", [*FAULTS, "refused"])
@pytest.mark.usefixtures("short_timeouts")
def test_rollback_succeeds_or_changes_nothing_although_a_request_fails_is_lost_or_late(
    fault, pushed_before, bucket, serving
):
    roll_back_at(serving, 1000.0)
    start = "PUT /bucket/serving/1000/saved_model.pb"
    number = next(number for number, request in enumerate(bucket.requests, 1) if request.startswith(start))
    pushed_before()
    bucket.faults = {number: fault}
    with contextlib.nullcontext() if fault != "refused" else pytest.raises(OSError, match=f"{serving}/"):
        assert roll_back_at(serving, 1000.0).version == 1000
    if fault == "stalled":
        bucket.release_stalled()
    served = serve_highest_version(bucket.contents())
    assert served == (300 if fault == "refused" else 1000)
    if fault == "refused":
        assert roll_back_at(serving, 2000.0).version == 2000
        assert serve_highest_version(bucket.contents()) == 2000
