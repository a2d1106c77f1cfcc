import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.run_file.push import Push, VertexEndpoint, is_remote
from detloom.schemas.run_file.read_run_file import read_run_file

ENDPOINT = {"project": "my-project", "region": "us-central1", "endpoint_name": "cells", "container_image": "image"}


@pytest.mark.parametrize("keep_versions", [1, -1])
def test_fewer_than_two_kept_versions_are_rejected(keep_versions):
    with pytest.raises(InputError, match=r"keep_versions: got .*, allowed: 0"):
        Push(keep_versions=keep_versions)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("project", "My Project", "project: got 'My Project', allowed: the id of a project"),
        ("region", "gs://x", "region: got 'gs://x', allowed: a region such as us-central1"),
        ("endpoint_name", 'a" OR "', "endpoint_name: got .*, allowed: letters"),
        ("container_image", "", "container_image: must not be empty"),
        ("traffic_percent", 0, "traffic_percent: got 0, allowed: 1 to 100"),
        ("keep_deployed", 1, "keep_deployed: got 1, allowed: 0 .* 2 or more"),
        ("min_replicas", 2, "min_replicas: got 2, allowed: at most max_replicas"),
    ],
)
def test_invalid_endpoint_is_rejected(field, value, message):
    with pytest.raises(InputError, match=message):
        VertexEndpoint(**{**ENDPOINT, field: value})


def test_an_endpoint_has_no_versions_to_keep():
    with pytest.raises(InputError, match=r"keep_versions: .*push\.vertex\.keep_deployed"):
        Push(keep_versions=3, vertex=VertexEndpoint(**ENDPOINT))


@pytest.mark.parametrize(
    ("address", "answer"), [("gs://b/x", True), ("s3://b", True), ("gs://", False), ("http://x", False), ("/a", False)]
)
def test_only_addresses_that_tfx_supports_are_remote(address, answer):
    assert is_remote(address) is answer


RUN = """
name: cats
data: {format: voc, path: photos, splits: {train: a, eval: b, test: c}}
train: {batch_size: 2, num_steps: 3}
"""
VERTEX = "push: {vertex: {project: my-project, region: us-central1, endpoint_name: cells, container_image: image}}"


def read(tmp_path, text):
    (tmp_path / "photos").mkdir(exist_ok=True)
    (tmp_path / "run.yaml").write_text(RUN + text)
    return read_run_file(tmp_path / "run.yaml")


def test_push_to_may_be_an_address(tmp_path, monkeypatch):
    monkeypatch.setenv("BUCKET", "gs://models")
    assert read(tmp_path, "push_to: gs://models/cats").push_to == "gs://models/cats"
    assert read(tmp_path, "push_to: '${BUCKET}/cats'").push_to == "gs://models/cats"
    assert read(tmp_path, "push_to: cats").push_to == str(tmp_path / "cats")


def test_unsupported_address_is_rejected_without_its_secret(tmp_path):
    with pytest.raises(InputError, match=r"run\.yaml:5: push_to: got 'ftp://\(hidden\)@x/y', allowed: a folder, or an"):
        read(tmp_path, "push_to: ftp://ann:hunter2@x/y")


def test_endpoint_and_folder_exclude_each_other(tmp_path):
    assert read(tmp_path, VERTEX).push.vertex.traffic_percent == 100
    with pytest.raises(InputError, match=r"run\.yaml:6: push_to: got .*push\.vertex, allowed: one of the two"):
        read(tmp_path, f"{VERTEX}\npush_to: cats")
