"""Nodes whose artifacts are in a bucket work on local copies."""

from pathlib import Path

import pytest
from tfx.types.standard_artifacts import Examples, Model

from detloom.pipelines.dag.local_copies import local_artifacts


def artifact(kind, uri):
    made = kind()
    made.uri = uri
    return made


def test_inputs_are_copied_and_outputs_uploaded(google_bucket, tmp_path):
    google_bucket.put("root/examples/1/Split-a/x", b"record")
    remote, local = artifact(Examples, "gs://bucket/root/examples/1"), artifact(Examples, str(tmp_path))
    model = artifact(Model, "gs://bucket/root/model/2")
    with local_artifacts({"examples": [remote, local]}, {"model": [model]}):
        assert (Path(remote.uri) / "Split-a/x").read_bytes() == b"record"
        assert local.uri == str(tmp_path)
        (Path(model.uri) / "Format-Serving").mkdir(parents=True)
        (Path(model.uri) / "Format-Serving/saved_model.pb").write_bytes(b"graph")
    assert (remote.uri, model.uri) == ("gs://bucket/root/examples/1", "gs://bucket/root/model/2")
    assert google_bucket.contents()["root/model/2/Format-Serving/saved_model.pb"] == b"graph"


def test_after_an_error_nothing_is_uploaded(google_bucket):
    model = artifact(Model, "gs://bucket/root/model/2")
    with pytest.raises(ValueError, match="diverged"), local_artifacts({}, {"model": [model]}):  # noqa: PT012
        (Path(model.uri) / "half").write_bytes(b"1")
        raise ValueError("diverged")
    assert model.uri == "gs://bucket/root/model/2"
    assert google_bucket.contents() == {}


def test_a_failed_upload_is_no_mistake_of_the_user(google_bucket):
    """A node that fails for such a reason is tried again."""
    model = artifact(Model, "gs://bucket/root/model/2")
    with pytest.raises(PermissionError), local_artifacts({}, {"model": [model]}):  # noqa: PT012
        (Path(model.uri) / "graph").write_bytes(b"1")
        google_bucket.is_stopped = True
