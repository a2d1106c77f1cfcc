"""Ingestion from a bucket gives the bytes of a local one, with about one request for each file of the data set."""

import re
from functools import partial

import apache_beam as beam
import pytest
from bucket_server import ApiError
from PIL import Image

from detloom.components.example_gen.data_folder import DataFolder, SourceError
from detloom.components.storage.storage import open_storage
from detloom.schemas.contracts.rejects import REPORT_FILE
from detloom.schemas.errors import InputError
from detloom.trainer_module.files.system_errors import describe_system_error

STEMS = {"train": [f"a{number:03d}" for number in range(20)], "val": ["b1", "b2"]}


@pytest.fixture
def scheme():
    return "gs"


@pytest.fixture
def bucket(scheme, make_bucket):
    return make_bucket(scheme)


def downloads_from(bucket):
    """Return the requests for contents of objects."""
    return [request for request in bucket.requests if request.startswith("GET /bucket/data/")]


@pytest.fixture
def upload(bucket, scheme):
    """Return a function that copies a folder to the bucket, forgets the requests so far, and returns the address."""

    def call(folder):
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                bucket.put(f"data/{path.relative_to(folder).as_posix()}", path.read_bytes())
        bucket.requests.clear()
        return f"{scheme}://bucket/data"

    return call


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_the_output_is_that_of_a_local_folder_and_each_file_is_requested_once(
    make_voc, upload, run_ingest, bucket, tmp_path
):
    folder = make_voc(STEMS)
    (folder / "JPEGImages/a007.jpg").unlink()
    (folder / "Annotations/a008.xml").write_text("<annotation>")
    local = run_ingest(folder, tmp_path / "local", max_reject_fraction=0.5)
    run_ingest(upload(folder), tmp_path / "remote", max_reject_fraction=0.5)
    assert (local["num_written"], local["num_quarantined"]) == (20, 2)
    downloads = downloads_from(bucket)
    # two lists, 22 annotations, one of them also to check the format, and the images of those that are valid
    assert len(downloads) == 2 + 22 + 1 + 21
    assert len(bucket.requests) - len(downloads) < 25  # pages of listings, one of them of files that no record names
    local_files, remote_files = files_of(tmp_path / "local"), files_of(tmp_path / "remote")
    assert local_files.keys() == remote_files.keys()
    different = {name.name for name, content in local_files.items() if content != remote_files[name]}
    assert different == {REPORT_FILE}


@pytest.mark.reliability("store failure", "ingest")
def test_requests_that_fail_or_are_cut_are_repeated(make_voc, upload, run_ingest, bucket, tmp_path):
    folder = make_voc(STEMS)
    run_ingest(folder, tmp_path / "local")
    address = upload(folder)
    bucket.faults = {1: "unavailable", 3: "answer_lost", 20: "cut", 30: "unavailable", 35: "answer_lost", 40: "cut"}
    run_ingest(address, tmp_path / "remote")
    local_files, remote_files = files_of(tmp_path / "local"), files_of(tmp_path / "remote")
    assert {name.name for name in local_files if local_files[name] != remote_files.get(name)} == {REPORT_FILE}


def refuse(bucket, part):
    """Refuse the requests whose path contains `part`."""

    def before_request():
        if part in bucket.requests[-1]:
            raise ApiError(403, "no access")

    bucket.before_request = before_request


@pytest.mark.reliability("store failure", "ingest")
def test_a_refused_image_ends_the_ingestion_with_one_sentence(make_voc, upload, run_ingest, bucket, tmp_path):
    address = upload(make_voc({"train": ["a1", "a2", "a3"], "val": ["b1"]}))
    refuse(bucket, "a2.jpg")
    with pytest.raises(Exception, match="no access") as failure:
        run_ingest(address, tmp_path, partial(beam.Pipeline, runner="DirectRunner"), max_reject_fraction=0.9)
    assert re.fullmatch(
        f"{address}/JPEGImages/a2.jpg: [^\n]*no access; check the credentials and their permissions, and run .*",
        describe_system_error(failure.value),
    )


@pytest.mark.reliability("store failure", "ingest")
def test_images_do_not_lose_their_labels_when_the_storage_refuses_them(upload, run_ingest, bucket, tmp_path):
    write_yolo(tmp_path / "yolo")
    address = upload(tmp_path / "yolo")
    refuse(bucket, "labels")
    with pytest.raises((OSError, InputError), match="no access"):
        run_ingest(address, tmp_path / "out", format="yolo", splits={"train": "train"}, max_reject_fraction=0.9)


def test_names_that_no_object_can_have_are_rejects(upload, bucket, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a").write_bytes(b"1")
    folder = DataFolder(upload(tmp_path / "data"))
    for name in ("a" * 1025, "a\nb", "\udc80", "b/" * 600 + "c"):
        assert folder.status(name) is None
        assert not folder.is_folder(name)
        with pytest.raises(SourceError):
            folder.read_bytes(name, 10)
    assert not bucket.requests
    assert folder.read_bytes("a", 10) == b"1"


def test_a_large_folder_is_listed_page_by_page_and_sorted(upload, bucket, tmp_path, monkeypatch):
    names = [f"{number}.jpg" for number in range(30)] + ["b/1", "a/1", ".hidden", ".c/1"]
    for name in names:
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_bytes(name.encode())
    address, bucket.page_size = upload(tmp_path / "data"), 4
    monkeypatch.setattr("detloom.components.storage.bucket.NAMES_PER_PAGE", 4)
    next(open_storage(address).iter_entries())
    assert len(bucket.requests) == 1
    local, remote = DataFolder(str(tmp_path / "data")), DataFolder(address)
    assert [(each.path, each.size) for each in remote.walk()] == [(each.path, each.size) for each in local.walk()]
    assert remote.list_folders() == local.list_folders() == ["a", "b"]


def write_yolo(folder):
    for number in range(20):
        (folder / "images/train").mkdir(parents=True, exist_ok=True)
        (folder / "labels/train").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (60, 40), (number, 0, 0)).save(folder / f"images/train/{number}.jpg")
        if number % 2:  # the others have no objects
            (folder / f"labels/train/{number}.txt").write_text("0 0.5 0.5 0.2 0.3\n")
    (folder / "data.yaml").write_text("train: images/train\nval: images/train\nnames: [cat]\n")


@pytest.fixture
def downloads_of_ingestion(upload, run_ingest, bucket, tmp_path):
    """Return a function that compares an ingestion from the bucket with a local one, and returns its downloads."""

    def run(folder, **settings):
        run_ingest(folder, tmp_path / "local", **settings)
        run_ingest(upload(folder), tmp_path / "remote", **settings)
        local_files, remote_files = files_of(tmp_path / "local"), files_of(tmp_path / "remote")
        assert {name.name for name in local_files if local_files[name] != remote_files[name]} == {REPORT_FILE}
        return downloads_from(bucket)

    return run


def test_images_without_labels_cost_no_request(downloads_of_ingestion, tmp_path):
    write_yolo(tmp_path / "yolo")
    downloads = downloads_of_ingestion(tmp_path / "yolo", format="yolo", splits={"train": "train"})
    assert sum("/train/" in path for path in downloads) == 20 + 10


def test_a_record_of_a_file_is_one_request(make_example, write_records, downloads_of_ingestion, tmp_path):
    folder = tmp_path / "records"
    records = [make_example([(0.1, 0.1, 0.5, 0.5)], name=f"image {number}") for number in range(20)]
    write_records(folder / "train.tfrecord", records)
    (folder / "label_map.pbtxt").write_text("item { id: 1 name: 'cat' }")
    downloads = downloads_of_ingestion(folder, format="tfrecord", splits={"train": "train.tfrecord"})
    assert sum("train.tfrecord" in path for path in downloads) <= 20 + 3
