"""Generations of objects in Cloud Storage, and requests that fail, get no response, or are executed late."""

import pytest

from detloom.components.storage import google_storage, object_storage
from detloom.components.storage.google_storage import GoogleStorage

FIRST = 1001  # the first generation of a new bucket


@pytest.fixture
def storage(google_bucket):
    return GoogleStorage("gs://bucket/data")


def test_file_is_created_only_if_it_does_not_exist(storage):
    assert storage.read_generation("lock") == (b"", 0)
    assert storage.write_generation("lock", b"a", 0) == FIRST
    assert storage.write_generation("lock", b"b", 0) == 0
    assert storage.read_generation("lock") == (b"a", FIRST)


def test_file_is_replaced_and_deleted_only_in_a_known_generation(storage):
    storage.write("lock", b"a")
    assert storage.write_generation("lock", b"b", FIRST) == FIRST + 1
    assert storage.write_generation("lock", b"c", FIRST) == 0
    storage.delete_generation("lock", FIRST)
    assert storage.read_generation("lock") == (b"b", FIRST + 1)
    storage.delete_generation("lock", FIRST + 1)
    storage.delete_generation("lock", FIRST + 1)
    assert not storage.exists("lock")


def test_copy_does_not_replace_a_file(storage):
    storage.write("hidden/model", b"new")
    storage.copy("hidden/model", "1/model")
    assert storage.read("1/model") == b"new"
    storage.write("hidden/model", b"newer")
    with pytest.raises(FileExistsError, match="gs://bucket/data/1/model"):
        storage.copy("hidden/model", "1/model")
    assert storage.read("1/model") == b"new"
    with pytest.raises(FileNotFoundError, match="gs://bucket/data/2/model"):
        storage.copy("hidden/missing", "2/model")


@pytest.mark.parametrize("fault", ["answer_lost", "unavailable"])
def test_each_write_succeeds_when_its_first_try_fails(fault, storage, google_bucket):
    def fail_next():
        google_bucket.faults = {len(google_bucket.requests) + 1: fault}

    fail_next()
    first = storage.write_generation("lock", b"a", 0)
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
    assert google_bucket.contents() == {"data/two": b"1"}


def test_write_of_another_process_is_not_taken_for_ours(storage, google_bucket):
    """The first try fails, and before the second one, another process creates the file with a token of its own."""

    def create_first():
        if len(google_bucket.requests) == 2:
            google_bucket.put("data/lock", b"other", {"metadata": {"detloom-write": "other"}})

    google_bucket.faults, google_bucket.before_request = {1: "unavailable"}, create_first
    assert storage.write_generation("lock", b"ours", 0) == 0
    assert google_bucket.contents() == {"data/lock": b"other"}


def test_request_that_is_executed_after_the_client_gave_up_changes_nothing(storage, google_bucket, monkeypatch):
    monkeypatch.setattr(google_storage, "_SMALL_FILE_TIMEOUT_SECONDS", 0.05)
    google_bucket.faults = {1: "stalled"}
    generation = storage.write_generation("lock", b"a", 0)
    assert storage.write_generation("lock", b"b", generation)
    google_bucket.release_stalled()
    assert google_bucket.contents() == {"data/lock": b"b"}


def test_large_file_is_uploaded_and_downloaded_in_parts(storage, google_bucket, monkeypatch):
    monkeypatch.setattr("google.cloud.storage.blob._MAX_MULTIPART_SIZE", 10)
    monkeypatch.setattr(object_storage, "_BLOCK_BYTES", 10)
    content = bytes(range(25))
    with storage.open_to_write("large") as file:
        file.write(content)
    assert any("uploadType=resumable" in request for request in google_bucket.requests)
    google_bucket.requests.clear()
    with storage.open("large") as file:
        assert file.read(3) + file.read(22) == content
    assert len(google_bucket.requests) == 1 + 3  # the metadata, and three parts


def test_rest_of_a_download_that_ended_early_is_requested_again(storage, google_bucket):
    storage.write("one", b"12345678")
    google_bucket.faults = {3: "cut", 4: "cut"}  # request 2 is for the metadata
    assert storage.read("one") == b"12345678"


def test_file_that_is_replaced_while_it_is_read_is_an_error(storage):
    storage.write("one", b"1")
    with storage.open("one") as file:
        storage.write("one", b"2")
        with pytest.raises(FileNotFoundError, match="gs://bucket/data/one"):
            file.read()


def test_folder_with_many_files_is_listed_completely(storage, google_bucket):
    google_bucket.page_size = 2
    for name in ("a", "b", "c/1", "c/2", "d", "e"):
        storage.write(name, b"")
    assert storage.list_names() == ["a", "b", "c", "d", "e"]


def test_objects_without_a_name_in_the_folder_are_not_listed_but_deleted(storage, google_bucket):
    for name in ("data/", "data/a/", "data/a//b", "data/a/c", "data/ab"):
        google_bucket.put(name, b"", {})
    assert storage.list_names("a") == ["c"]
    storage.delete_tree("a")
    assert list(google_bucket.contents()) == ["data/", "data/ab"]


def test_bucket_that_does_not_exist_is_not_an_empty_folder(google_bucket):
    with pytest.raises(FileNotFoundError, match="bucket does not exist"):
        GoogleStorage("gs://missing/data").list_names()


def test_missing_permission_is_reported_with_the_address(storage, google_bucket):
    google_bucket.is_stopped = True
    with pytest.raises(PermissionError, match="gs://bucket/data/lock"):
        storage.write_generation("lock", b"", 0)


def test_missing_credentials_are_an_os_error(monkeypatch):
    from google.auth.exceptions import DefaultCredentialsError

    def default(*args, **options):
        raise DefaultCredentialsError("no credentials")

    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setattr("google.auth.default", default)
    with pytest.raises(PermissionError, match="gs://bucket/data"):
        GoogleStorage("gs://bucket/data").list_names()
