import pytest

from detloom.pipelines.container.task_storage import Addresses, TaskStorage, file_of, make_parent
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
def test_addresses_map_to_the_mounted_folders(uri, path):
    assert TaskStorage().local_path(uri) == path


def test_the_root_of_mounts_can_be_changed():
    storage = TaskStorage.of_container({"DETLOOM_STORAGE_ROOT": "/scratch/"}, [])
    assert storage.local_path("gs://bucket/x") == "/scratch/gcs/bucket/x"
    assert storage.local_path("/minio/mlpipeline/x") == "/scratch/minio/mlpipeline/x"
    assert storage.local_path("/tmp/x") == "/tmp/x"


@pytest.mark.parametrize("runner", ["DataflowRunner", "FlinkRunner"])
def test_local_workers_have_mounts_and_remote_ones_none(runner):
    storage = TaskStorage.of_container({}, ["--labels=a=b", f"--runner={runner}"])
    assert storage.local_path("gs://bucket/x") == "gs://bucket/x"
    assert storage.bucket_folder("gs://bucket/x") is None
    assert TaskStorage.of_container({}, ["--runner=DirectRunner", "--direct_num_workers=2"]) == TaskStorage()


def test_a_bucket_maps_to_a_folder_which_an_address_cannot_leave():
    assert TaskStorage().bucket_folder("gs://bucket/a/b") == "/gcs/bucket"
    assert TaskStorage().bucket_folder("gs://bucket") == "/gcs/bucket"
    assert TaskStorage().bucket_folder("/data/digits") is None
    with pytest.raises(InputError, match=r"gs://bucket/\.\./other/x: '\.\.' is not allowed"):
        TaskStorage().local_path("gs://bucket/../other/x")


def test_only_known_paths_are_converted_back():
    addresses = Addresses()
    addresses.add("/gcs/bucket/task/model", "gs://bucket/task/model")
    addresses.add("/data/x", "/data/x")
    assert addresses.restore("/gcs/bucket/task/model") == "gs://bucket/task/model"
    assert addresses.restore("/gcs/bucket/task/model/Format-Serving") == "gs://bucket/task/model/Format-Serving"
    assert addresses.restore("/gcs/bucket/task/model2") == "/gcs/bucket/task/model2"
    assert addresses.restore("a sentence") == "a sentence"


def test_parent_folders_are_created_for_local_files_only(tmp_path, monkeypatch):
    make_parent(str(tmp_path / "a" / "b" / "file"))
    assert (tmp_path / "a" / "b").is_dir()
    monkeypatch.chdir(tmp_path)
    make_parent("gs://bucket/a/file")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_package_file_is_found_by_name_and_digest(schema_address, schema_file):
    assert file_of(schema_address).samefile(schema_file)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("package://detloom.schemas.contracts/example_schema.pbtxt?sha256=0123456789abcdef", "0123456789abcdef"),
        ("package://detloom.schemas.contracts/no_such.pbtxt?sha256=0123456789abcdef", "no such file in this image"),
        ("package://detloom.nowhere/x.pbtxt?sha256=0123456789abcdef", "no such file in this image"),
        ("package://detloom.schemas.errors/x.pbtxt?sha256=0123456789abcdef", "no such file in this image"),
        ("package://detloom.schemas.contracts/../setup.py?sha256=0123456789abcdef", "allowed: package://MODULE/FILE"),
        ("package://os/path.py?sha256=0123456789abcdef", "allowed: package://MODULE/FILE"),
        ("package://detloom.schemas.contracts/example_schema.pbtxt", "allowed: package://MODULE/FILE"),
    ],
)
def test_other_addresses_are_refused(address, message):
    with pytest.raises(InputError, match=message):
        file_of(address)
