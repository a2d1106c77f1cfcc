import json

import pytest
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

from detloom.pipelines.container.executor_output import finish_output, read_output
from detloom.pipelines.container.storage import Addresses


@pytest.fixture
def finish(tmp_path):
    """Finish an output whose artifact `page` lies in `tmp_path`; its address is gs://b/page."""

    def finish_it(artifact, page_keys=()):
        path = tmp_path / "output.json"
        artifact = {"uri": str(tmp_path / "page"), **artifact}
        path.write_text(json.dumps({"artifacts": {"page": {"artifacts": [artifact]}}}))
        addresses = Addresses()
        addresses.add(str(tmp_path / "page"), "gs://b/page")
        finish_output(str(path), addresses, page_keys)
        assert {file.name for file in tmp_path.iterdir()} <= {"output.json", "page"}
        return json_format.Parse(path.read_text(), pipeline_spec_pb2.ExecutorOutput()).artifacts["page"].artifacts[0]

    return finish_it


def test_local_paths_become_addresses_in_metadata_too(finish, tmp_path):
    metadata = {"current_model": f"{tmp_path}/page/x", "sentence": "Blessed.", "AP": 0.5, "curve": [{"recall": 1.0}]}
    artifact = finish({"metadata": metadata})
    assert artifact.uri == "gs://b/page"
    expected = {"current_model": "gs://b/page/x", "sentence": "Blessed.", "AP": 0.5, "curve": [{"recall": 1.0}]}
    assert json_format.MessageToDict(artifact.metadata) == expected


def test_the_address_of_a_page_is_its_file(finish, tmp_path):
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "report.html").write_text("<p>")
    assert finish({}, page_keys=["page"]).uri == "gs://b/page/report.html"
    assert finish({}, page_keys=[]).uri == "gs://b/page"


def test_a_page_that_was_not_written_keeps_its_address(finish, tmp_path):
    assert finish({}, page_keys=["page"]).uri == "gs://b/page"
    (tmp_path / "page").mkdir()
    assert finish({}, page_keys=["page"]).uri == "gs://b/page"


def test_a_page_is_one_file(finish, tmp_path):
    (tmp_path / "page").mkdir()
    for name in ("a.html", "b.html"):
        (tmp_path / "page" / name).write_text("")
    with pytest.raises(AssertionError, match=r"one file was expected, there are \['a.html', 'b.html'\]"):
        finish({}, page_keys=["page"])


def test_metadata_without_a_value_is_left_out(finish):
    assert json_format.MessageToDict(finish({"metadata": {"a": None, "b": 1}}).metadata) == {"b": 1}


def test_what_a_newer_backend_added_is_no_error(tmp_path):
    path = tmp_path / "output.json"
    path.write_text('{"parameterValues": {"span": 3}, "addedLater": {"x": 1}}')
    assert read_output(str(path)).parameter_values["span"].number_value == 3
