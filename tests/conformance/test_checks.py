import json
from pathlib import Path

import pytest
import yaml
from conformance_driver.errors import JobRefused
from conformance_driver.job import CLUSTER_ROOT, read_job
from conformance_jobs import MODEL, Step, spec_of, text_of

STEPS = {
    "Trainer": Step(code="pass", outputs={"model": MODEL}),
    "Pusher": Step(code="pass", inputs={"model": "Trainer.model"}, parameters={"push_to": "/models"}),
}


GOLDEN_FILES = sorted(Path(__file__).parents[1].glob("pipelines/compile/golden/*"))


def refused(spec, backend="kubeflow"):
    """Return the message with which a spec is refused."""
    text = yaml.safe_dump(spec) if backend == "kubeflow" else json.dumps({"pipelineSpec": spec, **ROOT})
    with pytest.raises(JobRefused) as caught:
        read_job(text, backend)
    return str(caught.value)


ROOT = {"runtimeConfig": {"gcsOutputDirectory": "gs://bucket/root"}}


@pytest.mark.parametrize("backend", ["kubeflow", "vertex"])
def test_a_valid_job_is_accepted(backend):
    job = read_job(text_of(STEPS, backend), backend)
    assert job.name == "small"
    assert sorted(job.spec.root.dag.tasks) == ["Pusher", "Trainer"]


@pytest.mark.parametrize("path", GOLDEN_FILES, ids=lambda path: path.name)
def test_the_golden_files_are_accepted(path):
    job = read_job(path.read_text(), "vertex" if path.suffix == ".json" else "kubeflow", "minio://bucket/root")
    assert {"DetectionExampleGen", "Trainer", "Pusher"} <= set(job.spec.components)


def test_the_root_of_the_job_overrides_that_of_the_cluster():
    spec = {**spec_of(STEPS), "defaultPipelineRoot": "minio://mine"}
    assert read_job(yaml.safe_dump(spec), "kubeflow").root == CLUSTER_ROOT


@pytest.mark.parametrize("backend", ["kubeflow", "vertex"])
def test_an_unknown_field_is_refused(backend):
    spec = spec_of(STEPS)
    spec["root"]["dag"]["tasks"]["Pusher"]["retries"] = 3
    assert 'no field named "retries"' in refused(spec, backend)


def test_a_missing_declared_input_is_refused():
    spec = spec_of(STEPS)
    del spec["root"]["dag"]["tasks"]["Pusher"]["inputs"]["parameters"]["push_to"]
    assert refused(spec) == "root.Pusher: parameters push_to are declared and not given"


def test_an_optional_input_may_be_absent():
    spec = spec_of(STEPS)
    spec["components"]["Pusher"]["inputDefinitions"]["artifacts"]["model"]["isOptional"] = True
    del spec["root"]["dag"]["tasks"]["Pusher"]["inputs"]["artifacts"]["model"]
    job = read_job(yaml.safe_dump(spec), "kubeflow")
    assert list(job.spec.root.dag.tasks["Pusher"].inputs.artifacts) == []


def test_an_undeclared_input_is_refused():
    spec = spec_of(STEPS)
    spec["root"]["dag"]["tasks"]["Pusher"]["inputs"]["parameters"]["nonce"] = {"runtimeValue": {"constant": "x"}}
    assert refused(spec) == "root.Pusher: parameters nonce are given and not declared"


def test_an_input_has_the_type_of_the_output_that_it_comes_from():
    steps = {**STEPS, "Trainer": Step(code="pass", outputs={"model": "tfx.Examples"})}
    assert refused(spec_of(steps)) == "root.Pusher.model: gets a tfx.Examples, declared: tfx.Model"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"producerTask": "Tuner", "outputArtifactKey": "model"}, "waits for Tuner, which is not in its DAG"),
        ({"producerTask": "Trainer", "outputArtifactKey": "models"}, "Trainer has no output models"),
    ],
)
def test_an_input_from_an_unknown_task_is_refused(source, message):
    spec = spec_of(STEPS)
    spec["root"]["dag"]["tasks"]["Pusher"]["inputs"]["artifacts"]["model"] = {"taskOutputArtifact": source}
    assert message in refused(spec)


def test_an_undeclared_dag_input_is_refused():
    steps = {"training": Step(tasks={"Pusher": Step(code="pass", inputs={"model": "^model"})})}
    assert refused(spec_of(steps)) == "training.Pusher.model: its DAG has no input model"


def test_cyclic_dependencies_are_refused():
    steps = {"A": Step(code="pass", after=["B"]), "B": Step(code="pass", after=["A"])}
    assert refused(spec_of(steps)) == "cyclic dependencies: A, B"


@pytest.mark.parametrize("name", ["Trainer.1", "1Trainer", "My_Trainer"])
def test_kubeflow_refuses_task_names_that_are_illegal_in_argo(name):
    assert "allowed in Argo" in refused(spec_of({name: Step(code="pass")}))


@pytest.mark.parametrize("name", ["my_pipeline", "Demo", "demo-"])
def test_kubeflow_refuses_pipeline_names_that_are_illegal_in_kubernetes(name):
    assert "pipelineInfo.name" in refused(spec_of(STEPS, name=name))


def test_kubeflow_refuses_resolvers_and_vertex_accepts_them():
    steps = {"Resolver": Step(outputs={"model": MODEL}, queries={"model": 'schema_title="tfx.Model" AND state=LIVE'})}
    assert refused(spec_of(steps)) == "Resolver-executor: resolver executors not implemented"
    read_job(text_of(steps, "vertex"), "vertex")


def test_kubeflow_refuses_an_importer_with_a_condition():
    spec = spec_of(STEPS)
    spec["deploymentSpec"]["executors"]["Pusher-executor"] = {"importer": {"artifactUri": {"constant": "gs://b/k"}}}
    spec["root"]["dag"]["tasks"]["Pusher"]["triggerPolicy"] = {"condition": "true"}
    assert "triggerPolicy.condition on importer task is not supported" in refused(spec)


def test_kubeflow_accepts_only_whole_back_off_factors():
    spec = spec_of(STEPS)
    spec["root"]["dag"]["tasks"]["Pusher"]["retryPolicy"] = {"maxRetryCount": 1, "backoffFactor": 1.5}
    assert "allowed: whole numbers" in refused(spec)


def test_kubeflow_accepts_only_schema_2_1():
    assert refused({**spec_of(STEPS), "schemaVersion": "2.0.0"}) == "schemaVersion: got '2.0.0', allowed: 2.1.0"


def test_vertex_accepts_only_roots_in_cloud_storage():
    text = json.dumps({"pipelineSpec": spec_of(STEPS), "runtimeConfig": {"gcsOutputDirectory": "/tmp/root"}})
    with pytest.raises(JobRefused, match="gcsOutputDirectory"):
        read_job(text, "vertex")


def test_vertex_refuses_types_without_a_namespace():
    steps = {"Trainer": Step(code="pass", outputs={"model": "Model"})}
    assert refused(spec_of(steps), "vertex") == "Trainer.model: got the type 'Model', allowed: namespace.Title"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pvcMounts": []}, "unknown field pvcMounts"),
        ({"pvcMount": [{"constant": "models", "path": "/m"}]}, "unknown field path"),
        ({"imagePullPolicy": "Sometimes"}, "imagePullPolicy: got 'Sometimes'"),
        ({"tolerations": [{"key": 1}]}, "got 1, allowed: str"),
    ],
)
def test_the_platform_document_is_read_strictly(settings, message):
    with pytest.raises(JobRefused, match=message):
        read_job(text_of(STEPS, "kubeflow", {"Trainer-executor": settings}), "kubeflow")


def test_unknown_executors_in_the_platform_document_are_refused():
    with pytest.raises(JobRefused, match="Tuner-executor"):
        read_job(text_of(STEPS, "kubeflow", {"Tuner-executor": {}}), "kubeflow")
