"""Generations of files in buckets, and requests that fail, get no response, or are executed late."""

import os

import pytest

from detloom.components.storage import bucket as module
from detloom.components.storage.bucket import BucketStorage


@pytest.fixture
def storage(root, bucket):
    return BucketStorage(root)


def test_file_is_created_only_if_it_does_not_exist(storage):
    assert storage.read_generation("lock") == (b"", None)
    generation = storage.write_generation("lock", b"a", None)
    assert storage.write_generation("lock", b"b", None) is None
    assert storage.read_generation("lock") == (b"a", generation)


def test_file_is_replaced_only_in_a_known_generation(storage):
    first = storage.write_generation("lock", b"a", None)
    second = storage.write_generation("lock", b"b", first)
    assert second not in (None, first)
    assert storage.write_generation("lock", b"c", first) is None
    assert storage.read_generation("lock") == (b"b", second)
    storage.delete("lock")
    assert storage.write_generation("lock", b"c", second) is None
    assert not storage.exists("lock")


def test_copy_of_a_missing_file_is_an_error(storage, root):
    storage.write("hidden/model", b"new")
    storage.copy("hidden/model", "1/model")
    assert storage.read("1/model") == b"new"
    with pytest.raises(FileNotFoundError, match=f"{root}/hidden/missing"):
        storage.copy("hidden/missing", "2/model")


@pytest.mark.parametrize("fault", ["answer_lost", "unavailable"])
def test_each_write_succeeds_when_its_first_try_fails(fault, storage, bucket):
    def fail_next():
        bucket.faults = {len(bucket.requests) + 1: fault}

    fail_next()
    first = storage.write_generation("lock", b"a", None)
    fail_next()
    second = storage.write_generation("lock", b"b", first)
    assert storage.read_generation("lock") == (b"b", second)
    fail_next()
    storage.write("one", b"1")
    fail_next()
    storage.copy("one", "two")
    fail_next()
    storage.delete("one")
    assert bucket.contents() == {"data/lock": b"b", "data/two": b"1"}


def test_write_of_another_process_is_not_taken_for_ours(storage, bucket):
    """The first try fails, and before the second one, another process creates the file."""

    def create_first():
        if len(bucket.requests) == 2:
            bucket.put("data/lock", b"other")

    bucket.faults, bucket.before_request = {1: "unavailable"}, create_first
    assert storage.write_generation("lock", b"ours", None) is None
    assert bucket.contents() == {"data/lock": b"other"}


def test_request_that_is_executed_after_the_client_gave_up_changes_nothing(storage, bucket, monkeypatch):
    monkeypatch.setattr(module, "_SMALL_FILE_TIMEOUT_SECONDS", 0.2)
    bucket.faults = {1: "stalled"}
    generation = storage.write_generation("lock", b"a", None)
    assert storage.write_generation("lock", b"b", generation)
    bucket.release_stalled()
    assert bucket.contents() == {"data/lock": b"b"}


def test_large_file_is_uploaded_and_downloaded_in_parts(storage, bucket, monkeypatch):
    monkeypatch.setattr(module, "_PART_BYTES", 10)
    monkeypatch.setattr("detloom.components.storage.interface.BLOCK_BYTES", 10)
    content = bytes(range(25))
    with storage.open_to_write("large") as file:
        file.write(content)
    assert bucket.contents() == {"data/large": content}
    assert len(bucket.requests) == 1 + 3 + 1  # start, three parts, completion
    bucket.requests.clear()
    with storage.open("large") as file:
        assert file.read(3) + file.read(22) == content
    assert len(bucket.requests) == 1 + 3  # the metadata, and three parts


def test_rest_of_a_download_that_ended_early_is_requested_again(storage, bucket):
    storage.write("one", bytes(range(200)) * 10)
    bucket.faults = {2: "cut", 3: "cut"}
    assert storage.read("one") == bytes(range(200)) * 10


def test_file_that_is_replaced_while_it_is_read_is_an_error(storage, root):
    storage.write("one", b"1")
    with storage.open("one") as file:
        storage.write("one", b"2")
        with pytest.raises(FileNotFoundError, match=f"{root}/one"):
            file.read()
    with pytest.raises(FileNotFoundError, match=f"{root}/none"):
        storage.open("none")


def test_folder_with_many_files_is_listed_completely(storage, bucket):
    bucket.page_size = 2
    for name in ("a", "b", "c/1", "c/2", "d", "e"):
        storage.write(name, b"1")
    assert storage.list_names() == ["a", "b", "c", "d", "e"]
    assert [entry.path for entry in storage.iter_entries()] == ["a", "b", "c", "d", "e"]


def test_a_large_subfolder_is_passed_over(storage, bucket, monkeypatch):
    monkeypatch.setattr(module, "NAMES_PER_PAGE", 3)
    bucket.page_size = 3
    for number in range(100):
        bucket.put(f"data/a/{number:02d}", b"1")
    for name in ("a0", "b/1", "c"):
        bucket.put(f"data/{name}", b"1")
    assert [entry.path for entry in storage.iter_entries()] == ["a", "a0", "b", "c"]
    assert len(bucket.requests) <= 4


def test_objects_that_mark_folders_are_not_files(storage, bucket):
    for name in ("data/", "data/a/", "data/a/c", "data/ab"):
        bucket.put(name, b"")
    for entries in (storage.list_entries(), storage.iter_entries()):
        assert [(entry.path, entry.is_folder) for entry in entries] == [("a", True), ("ab", False)]
    assert [entry.path for entry in storage.iter_entries("a")] == ["a/c"]
    assert storage.list_names("a") == ["c"]
    storage.delete_tree("a")
    assert not storage.exists("a/c")


def test_bucket_that_does_not_exist_is_not_an_empty_folder(root, bucket):
    with pytest.raises(FileNotFoundError, match="bucket does not exist"):
        BucketStorage(root.replace("bucket", "missing")).list_names()


def test_a_name_that_no_file_can_have_is_missing(storage):
    assert storage.read("a\n") is None


def test_a_password_in_an_address_is_not_shown(bucket):
    with pytest.raises(OSError, match="does not name a bucket") as error:
        BucketStorage("s3://user:planted@host/data").list_names()
    assert "planted" not in str(error.value)


def test_missing_permission_is_reported_with_the_address(storage, bucket, root):
    bucket.is_stopped = True
    with pytest.raises(PermissionError, match=f"refused.*{root}/lock"):
        storage.write_generation("lock", b"", None)


def test_missing_credentials_are_an_os_error(monkeypatch):
    from google.auth.exceptions import DefaultCredentialsError

    def default(*args, **options):
        raise DefaultCredentialsError("no credentials")

    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setattr("google.auth.default", default)
    with pytest.raises(PermissionError, match="gs://bucket/data"):
        BucketStorage("gs://bucket/data").list_names()


def test_an_address_of_a_server_that_is_no_url_is_named(storage, root, monkeypatch):
    name = "AWS_ENDPOINT_URL_S3" if root.startswith("s3") else "STORAGE_EMULATOR_HOST"
    with monkeypatch.context() as patched:
        patched.setenv(name, "not a url")
        with pytest.raises(OSError, match=name):
            storage.read("one")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "")  # does not concern this bucket
    assert storage.read("one") is None


def test_an_empty_address_of_a_server_is_as_none(make_bucket, monkeypatch):
    make_bucket("s3")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ["AWS_ENDPOINT_URL"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", "")
    assert BucketStorage("s3://bucket").read("one") is None


def test_google_credentials_are_sent(monkeypatch, make_bucket, bucket_servers):
    from google.auth.credentials import Credentials
    from google.auth.exceptions import RefreshError

    class Token(Credentials):
        is_expired = False

        def refresh(self, request):
            if self.is_expired:
                raise RefreshError("expired")
            self.token = "secret"

    make_bucket("gs")
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    monkeypatch.setenv("GOOGLE_BASE_URL", bucket_servers["gs"].url)
    monkeypatch.setattr("google.auth.default", lambda scopes: (Token(), "project"))
    BucketStorage("gs://bucket/data").write("one", b"1")
    assert BucketStorage("gs://bucket/data").read("one") == b"1"
    Token.is_expired = True
    monkeypatch.setenv("GOOGLE_TEST", "another client")
    with pytest.raises(PermissionError, match=r"expired.*gs://bucket/data/one"):
        BucketStorage("gs://bucket/data").read("one")


def test_a_process_forked_from_a_user_of_a_bucket_raises_instead_of_waiting(storage, monkeypatch):
    storage.write("one", b"1")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(OSError, match="forked"):
        storage.read("one")
