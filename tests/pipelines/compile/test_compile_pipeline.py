"""Compile pipelines that are not made from a run file."""

import json

import pytest
import yaml
from tfx import v1 as tfx
from tfx.dsl.component.experimental.container_component import create_container_component
from tfx.dsl.component.experimental.placeholders import InputUriPlaceholder
from tfx.dsl.components.base.base_node import BaseNode
from tfx.types.standard_artifacts import Examples, Model

import detloom
from detloom.components import DetectionExampleGen, DetectionPusher, ExampleGenParams, ProductionModel
from detloom.pipelines.compile.pipeline_spec import containers_of, tasks_of
from detloom.schemas.errors import InputError
from detloom.schemas.run_file import Kubeflow, NodeSettings, Vertex

KUBEFLOW = Kubeflow(image="registry.example.org/detloom:1.0", pipeline_root="gs://bucket/root")
VERTEX = Vertex(project="my-project", region="us-central1", image="image", pipeline_root="gs://bucket/root")


def compile_nodes(nodes: list[BaseNode], backend: Kubeflow | Vertex, settings: tuple[NodeSettings, ...] = ()):
    pipeline = tfx.dsl.Pipeline(pipeline_name="cells", pipeline_root="/folder", components=nodes, enable_cache=True)
    text = detloom.compile_pipeline(pipeline, backend, settings)
    return next(yaml.safe_load_all(text)) if backend is KUBEFLOW else json.loads(text)["pipelineSpec"]


def ingestion():
    return DetectionExampleGen("photos", ExampleGenParams(format="coco")).with_id("Ingest")


@pytest.mark.parametrize("backend", [KUBEFLOW, VERTEX], ids=["kubeflow", "vertex"])
def test_rules_go_by_the_executor_and_not_by_the_id_of_a_node(backend):
    serving = ProductionModel(production="/serving").with_id("Baseline")
    destination = tfx.proto.PushDestination(
        filesystem=tfx.proto.PushDestination.Filesystem(base_directory="gs://bucket/serving")
    )
    push = DetectionPusher(serving.outputs["model"], push_destination=destination).with_id("Deploy")
    settings = (NodeSettings(node="Ingest", cpu="2", max_retries=3),)
    spec = compile_nodes([ingestion(), serving, push], backend, settings)
    assert spec["defaultPipelineRoot"] == "gs://bucket/root"
    container, tasks = containers_of(spec)["Ingest"], tasks_of(spec)
    assert container["command"][2] == "detloom.pipelines.container.example_gen_entrypoint"
    assert ("lifecycle" in container) == (backend is VERTEX)
    assert container["resources"] == {"cpuRequest" if backend is KUBEFLOW else "cpuLimit": 2.0}
    assert tasks["Ingest"]["retryPolicy"]["maxRetryCount"] == 3
    uncached = {name for name, task in tasks.items() if task["cachingOptions"] == {}}
    assert uncached == {"Baseline", "Deploy", *(["Ingest"] if backend is KUBEFLOW else [])}


@pytest.mark.parametrize("backend", [KUBEFLOW, VERTEX], ids=["kubeflow", "vertex"])
def test_a_container_component_keeps_its_command(backend):
    component = create_container_component(
        name="Count",
        image="alpine",
        command=["sh", "-c", "ls", InputUriPlaceholder("examples")],
        inputs={"examples": Examples},
    )
    gen = ingestion()
    spec = compile_nodes([gen, component(examples=gen.outputs["examples"])], backend)
    assert containers_of(spec)["Count"]["command"][:3] == ["sh", "-c", "ls"]
    assert containers_of(spec)["Count"]["image"] == "alpine"


def test_settings_that_only_kubernetes_reads_are_refused_on_vertex_ai():
    settings = (NodeSettings(node="Ingest", node_selector={"disk": "ssd"}),)
    with pytest.raises(InputError, match=r"Ingest: node_selector: .*Vertex AI"):
        compile_nodes([ingestion()], VERTEX, settings)


def test_nodes_that_kubeflow_cannot_run_are_refused():
    resolver = tfx.dsl.Resolver(
        strategy_class=tfx.dsl.experimental.LatestArtifactStrategy, model=tfx.dsl.Channel(type=Model)
    )
    importer = tfx.dsl.Importer(source_uri="/data/model", artifact_type=Model)
    spans = tfx.components.ImportExampleGen(input_base="/data/span-{SPAN}")
    for node, message in (
        (resolver.with_id("Baseline"), r"Baseline: is a Resolver, .*ProductionModel"),
        (importer.with_id("Given"), r"Given: got '/data/model', allowed .*: an address at minio://, s3://, gs://\."),
        (spans, r"ImportExampleGen: got '\{SPAN\}' in a path"),
    ):
        with pytest.raises(InputError, match=message):
            compile_nodes([node], KUBEFLOW)
