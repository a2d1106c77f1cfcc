import pytest
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2
from tfx.orchestration.kubeflow.v2 import compiler_utils
from tfx.types import standard_artifacts

from detloom.components.artifact_types import MetricsForUi, PageForUi, Rejects
from detloom.pipelines.container.input_types import class_of, complete_inputs, register_titles, title_of
from detloom.schemas.errors import InputError


@pytest.fixture(autouse=True)
def titles(monkeypatch):
    monkeypatch.setattr(compiler_utils, "TITLE_TO_CLASS_PATH", dict(compiler_utils.TITLE_TO_CLASS_PATH))
    register_titles()


def complete(backend, artifact, title="tfx.Model"):
    """The artifacts that are left of an input with that one."""
    invocation, spec_json = backend.arguments({}, inputs={"model": (title, artifact)})
    executor_input = json_format.Parse(invocation, pipeline_spec_pb2.ExecutorInput())
    complete_inputs(executor_input.inputs, json_format.Parse(spec_json, pipeline_spec_pb2.ComponentInputsSpec()))
    return list(executor_input.inputs.artifacts["model"].artifacts)


def test_an_input_has_the_type_that_the_job_was_compiled_with(backend):
    (model,) = complete(backend, {"name": "57", "uri": "gs://b/model", "metadata": {"a": 1}})
    assert title_of(model.type) == "tfx.Model"
    assert (model.name, model.uri, model.metadata["a"]) == ("57", "gs://b/model", 1)
    assert class_of(model.type) is standard_artifacts.Model


def test_an_empty_type_is_none(kubeflow):
    (model,) = complete(kubeflow, {"name": "57", "uri": "gs://b/model", "type": {"instanceSchema": ""}})
    assert title_of(model.type) == "tfx.Model"


def test_the_type_of_any_artifact_is_none(kubeflow):
    (model,) = complete(kubeflow, {"name": "57", "uri": "gs://b/model", "type": {"schemaTitle": "system.Artifact"}})
    assert title_of(model.type) == "tfx.Model"


def test_an_artifact_that_stands_for_none_is_not_there(backend):
    assert complete(backend, {"name": "57", "uri": "gs://b/model", "metadata": {"nothing_found": 1}}) == []
    assert len(complete(backend, {"name": "57", "uri": "gs://b/model", "metadata": {"nothing_found": 0}})) == 1


def test_an_artifact_without_a_name_is_called_by_its_address(backend):
    (model,) = complete(backend, {"uri": "gs://b/model"})
    assert model.name == "gs://b/model"


def test_an_input_of_which_nobody_says_the_type_is_a_fault_of_the_compiled_job():
    executor_input = pipeline_spec_pb2.ExecutorInput()
    executor_input.inputs.artifacts["model"].artifacts.add(uri="gs://b/model")
    with pytest.raises(AssertionError, match="input model: neither the backend nor the job says its type"):
        complete_inputs(executor_input.inputs, pipeline_spec_pb2.ComponentInputsSpec())


@pytest.mark.parametrize(
    ("title", "kind"),
    [("system.HTML", PageForUi), ("system.Metrics", MetricsForUi), (Rejects.TYPE_NAME, Rejects)],
)
def test_our_own_types_and_those_of_the_user_interfaces_are_known(backend, title, kind):
    type_schema = json_format.ParseDict(backend.type_of(title), pipeline_spec_pb2.ArtifactTypeSchema())
    assert class_of(type_schema) is kind


def test_a_type_that_nobody_knows_is_named():
    with pytest.raises(InputError, match=r"got the type 'acme\.Thing'"):
        class_of(pipeline_spec_pb2.ArtifactTypeSchema(schema_title="acme.Thing"))
