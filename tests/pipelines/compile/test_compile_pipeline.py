"""Compile pipelines that are not made from a run file."""

import json
import re
from dataclasses import replace

import pytest
import yaml
from tfx import v1 as tfx
from tfx.dsl.component.experimental.container_component import create_container_component
from tfx.dsl.component.experimental.placeholders import InputUriPlaceholder
from tfx.dsl.components.base.base_node import BaseNode
from tfx.types.standard_artifacts import Examples, Model, ModelBlessing

import detloom
from detloom.components import DetectionExampleGen, DetectionPusher, ExampleGenParams, Notifier, ProductionModel
from detloom.pipelines.compile.pipeline_spec import containers_of, tasks_of
from detloom.schemas.errors import InputError
from detloom.schemas.run_file import Kubeflow, NodeSettings, Notifications, Vertex, Webhook

KUBEFLOW = Kubeflow(image="registry.example.org/detloom:1.0", pipeline_root="gs://bucket/root")
VERTEX = Vertex(project="my-project", region="us-central1", image="image", pipeline_root="gs://bucket/root")


def compile_nodes(nodes: list[BaseNode], backend: Kubeflow | Vertex, settings: tuple[NodeSettings, ...] = ()):
    pipeline = tfx.dsl.Pipeline(pipeline_name="cells", pipeline_root="/folder", components=nodes, enable_cache=True)
    text = detloom.compile_pipeline(pipeline, backend, settings)
    return next(yaml.safe_load_all(text)) if isinstance(backend, Kubeflow) else json.loads(text)["pipelineSpec"]


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


def test_one_pipeline_compiles_for_both_backends_with_the_settings_of_each():
    pipeline = tfx.dsl.Pipeline(pipeline_name="cells", pipeline_root="/folder", components=[ingestion()])
    detloom.compile_pipeline(pipeline, KUBEFLOW, (NodeSettings(node="Ingest", memory="16Gi"),))
    job = json.loads(detloom.compile_pipeline(pipeline, VERTEX))
    assert "resources" not in containers_of(job["pipelineSpec"])["Ingest"]


def test_a_trainer_of_any_id_keeps_its_unfinished_run():
    gen = ingestion()
    trainer = tfx.components.Trainer(
        run_fn="detloom.trainer_module.run_fn",
        examples=gen.outputs["examples"],
        train_args=tfx.proto.TrainArgs(),
        eval_args=tfx.proto.EvalArgs(),
    ).with_id("Fit")
    spec = compile_nodes([gen, trainer], replace(VERTEX, training_dir="gs://bucket/unfinished"))
    variables = {each["name"]: each["value"] for each in containers_of(spec)["Fit"]["env"]}
    assert variables["DETLOOM_TRAINING_DIR"] == "/gcs/bucket/unfinished"
    assert "env" not in containers_of(spec)["Ingest"]


def refusal(node, backend=KUBEFLOW, settings=()):
    with pytest.raises(InputError) as refused:
        compile_nodes([node], backend, settings)
    return str(refused.value)


def test_nodes_that_kubeflow_cannot_run_are_refused():
    strategy = tfx.dsl.experimental.LatestArtifactStrategy
    resolver = tfx.dsl.Resolver(strategy_class=strategy, model=tfx.dsl.Channel(type=Model)).with_id("Baseline")
    assert re.match(r"Baseline: is a Resolver, .*ProductionModel", refusal(resolver))
    importer = tfx.dsl.Importer(source_uri="/data/model", artifact_type=Model).with_id("Given")
    assert re.match(r"Given: got '/data/model', allowed .*: an address at minio://, s3://, gs://\.", refusal(importer))
    for span, first in (("{SPAN}", "{SPAN}"), ("{SPAN:3}", "{SPAN:3}"), ("{YYYY}-{MM}-{DD}", "{YYYY}")):
        spans = tfx.components.ImportExampleGen(input_base=f"/data/span-{span}")
        assert refusal(spans).startswith(f"ImportExampleGen: got '{first}' in a path")


def test_names_and_settings_that_would_be_lost_are_refused():
    assert refusal(ingestion().with_id("My_Ingest"), VERTEX).startswith("My_Ingest: is not an id of a node")
    assert refusal(ingestion(), settings=(NodeSettings(node="Ingets"),)) == "nodes: got Ingets, allowed: *, Ingest."
    beam = NodeSettings(node="*", beam_args=("--runner=DataflowRunner",))
    assert refusal(ingestion(), settings=(beam,)).startswith("nodes, *: beam_args: ")
    webhook = Notifications(webhook=Webhook(url="kubernetes:chat/webhook"))
    notifier = Notifier(pipeline="cells", notifications=webhook, blessing=tfx.dsl.Channel(type=ModelBlessing))
    assert refusal(notifier).startswith("Notifier: got a reference kubernetes:")
    with pytest.raises(InputError, match=r"components: got none"):
        compile_nodes([], KUBEFLOW)
    pipeline = tfx.dsl.Pipeline(pipeline_name="My Cells", pipeline_root="", components=[ingestion()])
    with pytest.raises(InputError, match=r"pipeline_name: got 'My Cells', allowed: "):
        detloom.compile_pipeline(pipeline, VERTEX)
