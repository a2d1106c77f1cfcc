import pytest
from conformance_driver.errors import TaskRefused
from conformance_driver.object_store import Buckets, Disk, local_path

ROOT = "minio://bucket/root"


@pytest.fixture
def disk(tmp_path):
    return Disk(tmp_path / "pod")


@pytest.fixture
def buckets(tmp_path):
    return Buckets(tmp_path / "buckets")


@pytest.mark.parametrize(
    ("address", "path"),
    [("gs://b/k", "/gcs/b/k"), ("minio://b/k/x", "/minio/b/k/x"), ("s3://b/k", "/s3/b/k")],
)
def test_an_address_maps_to_a_path_in_the_container(address, path):
    assert local_path(address) == path


def test_files_are_copied_and_empty_folders_are_not(disk, buckets, tmp_path):
    made = disk.path(f"{ROOT}/model")
    (made / "empty").mkdir(parents=True)
    (made / "variables").mkdir()
    (made / "variables" / "0").write_text("weights")
    buckets.upload(f"{ROOT}/model", disk, ROOT)

    other = Disk(tmp_path / "other")
    buckets.download(f"{ROOT}/model", other)
    assert [path.name for path in sorted(other.path(f"{ROOT}/model").iterdir())] == ["variables"]
    assert (other.path(f"{ROOT}/model") / "variables" / "0").read_text() == "weights"


def test_a_single_file_becomes_one_object(disk, buckets, tmp_path):
    disk.path(f"{ROOT}/page").mkdir(parents=True)
    (disk.path(f"{ROOT}/page") / "page.html").write_text("hello")
    buckets.upload(f"{ROOT}/page/page.html", disk, ROOT)
    buckets.download(f"{ROOT}/page/page.html", Disk(tmp_path / "other"))
    assert Disk(tmp_path / "other").path(f"{ROOT}/page/page.html").read_text() == "hello"


def test_a_missing_output_is_not_an_error(disk, buckets):
    buckets.upload(f"{ROOT}/nothing", disk, ROOT)
    buckets.download(f"{ROOT}/nothing", disk)
    assert not disk.path(f"{ROOT}/nothing").exists()


def test_names_with_a_common_prefix_are_kept_apart(disk, buckets, tmp_path):
    for key in ("model", "model_run"):
        disk.path(f"{ROOT}/{key}").mkdir(parents=True)
        (disk.path(f"{ROOT}/{key}") / "file").write_text(key)
        buckets.upload(f"{ROOT}/{key}", disk, ROOT)
    other = Disk(tmp_path / "other")
    buckets.download(f"{ROOT}/model", other)
    assert not other.path(f"{ROOT}/model_run").exists()


@pytest.mark.parametrize("address", ["minio://bucket/elsewhere", "/tmp/model", "minio://bucket/root"])
def test_an_address_outside_of_the_run_is_refused(disk, buckets, address):
    with pytest.raises(TaskRefused, match="expected bucket prefix"):
        buckets.upload(address, disk, ROOT)
