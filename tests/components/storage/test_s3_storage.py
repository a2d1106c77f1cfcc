"""Generations of objects at s3://, and requests that fail, get no response, or are executed late."""

import builtins

import pytest

from detloom.components.storage import s3_storage
from detloom.components.storage.s3_storage import S3Storage
from detloom.schemas.errors import InputError

A = '"0cc175b9c0f1b6a831c399e269772661"'  # ETag of b"a", its MD5


@pytest.fixture
def storage(s3_bucket):
    return S3Storage("s3://bucket/data")


def test_file_is_created_only_if_it_does_not_exist(storage):
    assert storage.read_generation("lock") == (b"", "")
    assert storage.write_generation("lock", b"a", "") == A
    assert storage.write_generation("lock", b"b", "") == ""
    assert storage.read_generation("lock") == (b"a", A)


def test_file_is_replaced_and_deleted_only_in_a_known_generation(storage):
    storage.write("lock", b"a")
    second = storage.write_generation("lock", b"b", A)
    assert storage.write_generation("lock", b"c", A) == ""
    storage.delete_generation("lock", A)
    assert storage.read_generation("lock") == (b"b", second)
    storage.delete_generation("lock", second)
    storage.delete_generation("lock", second)
    assert not storage.exists("lock")
    assert storage.write_generation("lock", b"c", second) == ""
    assert not storage.exists("lock")


def test_copy_of_a_missing_file_is_an_error(storage):
    storage.write("hidden/model", b"new")
    storage.copy("hidden/model", "1/model")
    assert storage.read("1/model") == b"new"
    with pytest.raises(FileNotFoundError, match="s3://bucket/data/hidden/missing"):
        storage.copy("hidden/missing", "2/model")


@pytest.mark.parametrize("fault", ["answer_lost", "unavailable"])
def test_each_write_succeeds_when_its_first_try_fails(fault, storage, s3_bucket):
    def fail_next():
        s3_bucket.faults = {len(s3_bucket.requests) + 1: fault}

    fail_next()
    first = storage.write_generation("lock", b"a", "")
    fail_next()
    second = storage.write_generation("lock", b"b", first)
    assert storage.read_generation("lock") == (b"b", second)
    fail_next()
    storage.delete_generation("lock", second)
    fail_next()
    storage.write("one", b"1")
    fail_next()
    storage.copy("one", "two")
    fail_next()
    storage.delete("one")
    assert s3_bucket.contents() == {"data/two": b"1"}


def test_write_of_another_process_is_not_taken_for_ours(storage, s3_bucket):
    """The first try fails, and before the second one, another process creates the file with a token of its own."""

    def create_first():
        if len(s3_bucket.requests) == 2:
            s3_bucket.put("data/lock", b"other", {"metadata": {"x-amz-meta-detloom-write": "other"}})

    s3_bucket.faults, s3_bucket.before_request = {1: "unavailable"}, create_first
    assert storage.write_generation("lock", b"ours", "") == ""
    assert s3_bucket.contents() == {"data/lock": b"other"}


def test_request_that_is_executed_after_the_client_gave_up_changes_nothing(storage, s3_bucket, monkeypatch):
    monkeypatch.setattr(s3_storage, "_TIMEOUT_SECONDS", 0.1)
    s3_bucket.faults = {1: "stalled"}
    generation = storage.write_generation("lock", b"a", "")
    assert storage.write_generation("lock", b"b", generation)
    s3_bucket.release_stalled()
    assert s3_bucket.contents() == {"data/lock": b"b"}


def test_rest_of_a_download_that_ended_early_is_requested_again(storage, s3_bucket):
    storage.write("one", b"12345678")
    s3_bucket.faults = {2: "cut", 3: "cut"}
    assert storage.read("one") == b"12345678"


def test_file_that_is_replaced_while_it_is_read_is_an_error(storage):
    storage.write("one", b"1")
    with storage.open("one") as file:
        storage.write("one", b"2")
        with pytest.raises(FileNotFoundError, match="s3://bucket/data/one"):
            file.read()


def test_objects_without_a_name_in_the_folder_are_not_listed_but_deleted(storage, s3_bucket):
    for name in ("data/", "data/a/", "data/a//b", "data/a/c", "data/ab"):
        s3_bucket.put(name, b"", {"metadata": {}})
    assert storage.list_names("a") == ["c"]
    storage.delete_tree("a")
    assert list(s3_bucket.contents()) == ["data/", "data/ab"]


def test_bucket_that_does_not_exist_is_not_an_empty_folder(s3_bucket):
    with pytest.raises(FileNotFoundError, match="bucket does not exist"):
        S3Storage("s3://missing/data").list_names()


def test_a_password_in_an_address_is_not_shown(s3_bucket):
    with pytest.raises(OSError, match="does not name a bucket") as error:
        S3Storage("s3://user:planted@host/data").list_names()
    assert "planted" not in str(error.value)


def test_missing_permission_is_reported_with_the_address(storage, s3_bucket):
    s3_bucket.is_stopped = True
    with pytest.raises(PermissionError, match="s3://bucket/data/lock"):
        storage.write_generation("lock", b"", "")


def test_missing_credentials_are_an_os_error(s3_bucket, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(PermissionError, match="s3://bucket/data"):
        S3Storage("s3://bucket/data").list_names()


def test_missing_client_is_one_sentence(monkeypatch):
    real_import = builtins.__import__

    def import_without_boto3(name, *args):
        if name.partition(".")[0] in ("boto3", "botocore"):
            raise ModuleNotFoundError(name)
        return real_import(name, *args)

    monkeypatch.setattr(builtins, "__import__", import_without_boto3)
    with pytest.raises(InputError, match=r"^s3://bucket/data: .*detloom\[s3\]"):
        S3Storage("s3://bucket/data").list_names()
