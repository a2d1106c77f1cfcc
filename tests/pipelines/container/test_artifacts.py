import json

import pytest
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2
from tfx.orchestration.kubeflow.v2 import compiler_utils
from tfx.types import standard_artifacts

from detloom.components.artifact_types import MetricsForUi, PageForUi, Rejects
from detloom.pipelines.container.artifacts import (
    class_of,
    complete_inputs,
    finish_output,
    read_output,
    register_titles,
    title_of,
)
from detloom.pipelines.container.task_storage import Addresses
from detloom.schemas.errors import InputError


@pytest.fixture(autouse=True)
def titles(monkeypatch):
    monkeypatch.setattr(compiler_utils, "TITLE_TO_CLASS_PATH", dict(compiler_utils.TITLE_TO_CLASS_PATH))
    register_titles()


def complete(backend, artifact, title="tfx.Model"):
    """Return the remaining artifacts of an input with this artifact."""
    invocation, spec_json = backend.arguments({}, inputs={"model": (title, artifact)})
    executor_input = json_format.Parse(invocation, pipeline_spec_pb2.ExecutorInput())
    complete_inputs(executor_input.inputs, json_format.Parse(spec_json, pipeline_spec_pb2.ComponentInputsSpec()))
    return list(executor_input.inputs.artifacts["model"].artifacts)


def test_an_untyped_input_gets_the_compiled_type(backend):
    (model,) = complete(backend, {"name": "57", "uri": "gs://b/model", "metadata": {"a": 1}})
    assert title_of(model.type) == "tfx.Model"
    assert (model.name, model.uri, model.metadata["a"]) == ("57", "gs://b/model", 1)
    assert class_of(model.type) is standard_artifacts.Model


@pytest.mark.parametrize("kind", [{"instanceSchema": ""}, {"schemaTitle": "system.Artifact"}])
def test_an_empty_and_the_generic_type_count_as_untyped(kubeflow, kind):
    (model,) = complete(kubeflow, {"name": "57", "uri": "gs://b/model", "type": kind})
    assert title_of(model.type) == "tfx.Model"


def test_an_artifact_that_marks_an_empty_result_is_removed(backend):
    assert complete(backend, {"name": "57", "uri": "gs://b/model", "metadata": {"nothing_found": 1}}) == []
    assert len(complete(backend, {"name": "57", "uri": "gs://b/model", "metadata": {"nothing_found": 0}})) == 1


def test_an_unnamed_artifact_is_named_by_its_address_and_one_without_any_type_is_a_bug(backend):
    (model,) = complete(backend, {"uri": "gs://b/model"})
    assert model.name == "gs://b/model"
    executor_input = pipeline_spec_pb2.ExecutorInput()
    executor_input.inputs.artifacts["model"].artifacts.add(uri="gs://b/model")
    with pytest.raises(AssertionError, match="input model"):
        complete_inputs(executor_input.inputs, pipeline_spec_pb2.ComponentInputsSpec())


@pytest.mark.parametrize(
    ("title", "kind"),
    [("system.HTML", PageForUi), ("system.Metrics", MetricsForUi), (Rejects.TYPE_NAME, Rejects)],
)
def test_our_own_types_and_system_types_are_known(backend, title, kind):
    type_schema = json_format.ParseDict(backend.type_of(title), pipeline_spec_pb2.ArtifactTypeSchema())
    assert class_of(type_schema) is kind
    with pytest.raises(InputError, match=r"got the type 'acme\.Thing'"):
        class_of(pipeline_spec_pb2.ArtifactTypeSchema(schema_title="acme.Thing"))
    path = f"{standard_artifacts.Schema.__module__}.Schema"  # TFX's title of a type of another package
    assert class_of(pipeline_spec_pb2.ArtifactTypeSchema(schema_title=path)) is standard_artifacts.Schema


@pytest.fixture
def finish(tmp_path):
    """Finish an output whose artifact `page` is in `tmp_path`; its address is gs://b/page."""

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


def test_local_paths_in_artifacts_and_metadata_become_addresses(finish, tmp_path):
    metadata = {"current_model": f"{tmp_path}/page/x", "sentence": "Blessed.", "AP": 0.5, "curve": [{"recall": 1.0}]}
    artifact = finish({"metadata": {**metadata, "nothing": None}})
    assert artifact.uri == "gs://b/page"
    expected = {"current_model": "gs://b/page/x", "sentence": "Blessed.", "AP": 0.5, "curve": [{"recall": 1.0}]}
    assert json_format.MessageToDict(artifact.metadata) == expected


def test_the_address_of_a_page_points_to_its_file(finish, tmp_path):
    assert finish({}, page_keys=["page"]).uri == "gs://b/page"
    (tmp_path / "page").mkdir()
    assert finish({}, page_keys=["page"]).uri == "gs://b/page"
    (tmp_path / "page" / "report.html").write_text("<p>")
    assert finish({}, page_keys=["page"]).uri == "gs://b/page/report.html"
    assert finish({}, page_keys=[]).uri == "gs://b/page"
    (tmp_path / "page" / "b.html").write_text("")
    with pytest.raises(AssertionError, match=r"\['b\.html', 'report\.html'\]"):
        finish({}, page_keys=["page"])


def test_unknown_output_fields_of_a_newer_backend_are_ignored(tmp_path):
    path = tmp_path / "output.json"
    path.write_text('{"parameterValues": {"span": 3}, "addedLater": {"x": 1}}')
    assert read_output(str(path)).parameter_values["span"].number_value == 3
