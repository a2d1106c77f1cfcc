import pytest

from detloom.pipelines.container.storage import Addresses, Storage, make_parent
from detloom.schemas.errors import InputError


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("gs://bucket/root/task/model", "/gcs/bucket/root/task/model"),
        ("minio://mlpipeline/v2/x", "/minio/mlpipeline/v2/x"),
        ("s3://bucket/x", "/s3/bucket/x"),
        ("https://example.org/x", "https://example.org/x"),
        ("/minio/mlpipeline/x", "/minio/mlpipeline/x"),
        ("/tmp/kfp_outputs/output_metadata.json", "/tmp/kfp_outputs/output_metadata.json"),
    ],
)
def test_addresses_are_the_folders_that_both_backends_mount(uri, path):
    assert Storage().local_path(uri) == path


def test_a_test_moves_the_mounts_to_another_folder():
    storage = Storage.of_container({"DETLOOM_STORAGE_ROOT": "/scratch/"}, [])
    assert storage.local_path("gs://bucket/x") == "/scratch/gcs/bucket/x"
    assert storage.local_path("/minio/mlpipeline/x") == "/scratch/minio/mlpipeline/x"
    assert storage.local_path("/tmp/x") == "/tmp/x"


@pytest.mark.parametrize("runner", ["DataflowRunner", "FlinkRunner"])
def test_workers_elsewhere_have_no_mounts(runner):
    storage = Storage.of_container({}, ["--labels=a=b", f"--runner={runner}"])
    assert storage.local_path("gs://bucket/x") == "gs://bucket/x"
    assert storage.bucket_folder("gs://bucket/x") is None


def test_workers_here_have():
    assert Storage.of_container({}, ["--runner=DirectRunner", "--direct_num_workers=2"]) == Storage()


def test_an_address_stays_in_its_bucket():
    with pytest.raises(InputError, match=r"gs://bucket/\.\./other/x: '\.\.' is not allowed"):
        Storage().local_path("gs://bucket/../other/x")


def test_a_bucket_is_a_folder():
    assert Storage().bucket_folder("gs://bucket/a/b") == "/gcs/bucket"
    assert Storage().bucket_folder("gs://bucket") == "/gcs/bucket"
    assert Storage().bucket_folder("/data/digits") is None


def test_paths_of_this_task_get_their_addresses_back_and_no_others():
    addresses = Addresses()
    addresses.add("/gcs/bucket/task/model", "gs://bucket/task/model")
    addresses.add("/data/x", "/data/x")
    assert addresses.restore("/gcs/bucket/task/model") == "gs://bucket/task/model"
    assert addresses.restore("/gcs/bucket/task/model/Format-Serving") == "gs://bucket/task/model/Format-Serving"
    assert addresses.restore("/gcs/bucket/task/model2") == "/gcs/bucket/task/model2"
    assert addresses.restore("a sentence") == "a sentence"


def test_a_folder_is_made_for_a_file_and_not_for_an_object(tmp_path, monkeypatch):
    make_parent(str(tmp_path / "a" / "b" / "file"))
    assert (tmp_path / "a" / "b").is_dir()
    monkeypatch.chdir(tmp_path)
    make_parent("gs://bucket/a/file")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
