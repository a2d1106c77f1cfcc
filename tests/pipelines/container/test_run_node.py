import json
import logging
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from kfp.pipeline_spec import pipeline_spec_pb2
from tfx.components.evaluator import constants
from tfx.dsl.io import fileio
from tfx.types import artifact_utils
from tfx.utils import name_utils

from detloom.components.evaluator.component import DetectionEvaluatorExecutor as EvaluatorExecutor
from detloom.components.notifier.component import Executor
from detloom.components.notifier.message_events import parse_final_status
from detloom.components.properties import address_of
from detloom.components.pusher.vertex import VertexExecutor
from detloom.pipelines.container import artifacts
from detloom.pipelines.container import run_node as node
from detloom.pipelines.container.run_node import Task, run_node

EVALUATOR = "detloom.components.evaluator.component.DetectionEvaluatorExecutor"
OUTPUTS = {
    "blessing": "tfx.ModelBlessing",
    "evaluation": "tfx.ModelEvaluation",
    "page": "system.HTML",
    "summary": "system.Markdown",
    "metrics": "system.Metrics",
}


def make_task(place="kubeflow", executor=EVALUATOR, invocation="", inputs_spec="") -> Task:
    return Task(place=place, executor_class_path=executor, invocation=invocation, inputs_spec=inputs_spec, beam_args=())


def task_of(backend, inputs, outputs=None, executor=EVALUATOR, parameters=None) -> Task:
    return make_task(backend.place, executor, *backend.arguments(outputs or OUTPUTS, inputs, parameters))


@pytest.fixture
def evaluator(monkeypatch):
    """Replace `Do` of the evaluator's executor by one that writes the same outputs; return the inputs it receives."""
    seen = {}

    def do(self, input_dict, output_dict, exec_properties):
        seen.update(input_dict)
        model = artifact_utils.get_single_instance(input_dict["model"])
        blessing, page, summary, metrics = (output_dict[key][0] for key in ("blessing", "page", "summary", "metrics"))
        blessing.set_int_custom_property(constants.ARTIFACT_PROPERTY_CURRENT_MODEL_ID_KEY, model.id)
        blessing.set_string_custom_property(constants.ARTIFACT_PROPERTY_CURRENT_MODEL_URI_KEY, model.uri)
        for baseline in input_dict.get("baseline_model", []):
            blessing.set_int_custom_property(constants.ARTIFACT_PROPERTY_BASELINE_MODEL_ID_KEY, baseline.id)
        metrics.set_float_custom_property("AP", 0.25)
        for artifact, name in ((page, "report.html"), (summary, "summary.md")):
            with open(f"{artifact.uri}/{name}", "w") as file:
                file.write("text")

    monkeypatch.setattr(EvaluatorExecutor, "Do", do)
    return seen


def model_at(uri: str, name: str = "", **metadata) -> tuple[str, dict]:
    return "tfx.Model", {"uri": uri, **({"name": name} if name else {}), **({"metadata": metadata} if metadata else {})}


def test_the_output_of_an_evaluation_has_addresses_names_and_pages(backend, evaluator):
    inputs = {"model": model_at("gs://b/Trainer/model", "57"), "baseline_model": model_at("gs://b/old", "12")}
    run_node(task_of(backend, inputs), backend.storage)
    assert evaluator["model"][0].uri == f"{backend.storage.root}/gcs/b/Trainer/model"
    assert address_of(evaluator["model"][0]) == "gs://b/Trainer/model"
    found = {key: artifacts.artifacts[0] for key, artifacts in backend.read_output().artifacts.items()}
    assert found["page"].uri == f"{backend.address}/page/report.html"
    assert found["summary"].uri == f"{backend.address}/summary/summary.md"
    assert found["metrics"].uri == f"{backend.address}/metrics"
    assert found["metrics"].metadata["AP"] == 0.25
    blessing = found["blessing"].metadata
    assert blessing["current_model_id"] == "57"  # Vertex AI's resolver searches for the model with that name
    assert blessing["baseline_model_id"] == "12"
    assert blessing["current_model"] == "gs://b/Trainer/model"


def test_the_vertex_pusher_gets_and_returns_unmounted_addresses(kubeflow, monkeypatch):
    vertex = replace(kubeflow, place="vertex", node="Pusher")
    seen, files = [], {}
    monkeypatch.setattr(node, "_execute", lambda task, executor_input: seen.append(executor_input))
    monkeypatch.setattr(node, "finish_output", lambda path, addresses, page_keys: files.update({path: addresses}))
    executor = name_utils.get_full_name(VertexExecutor)
    inputs = {"model": model_at("gs://b/Trainer/model", "57")}
    run_node(task_of(vertex, inputs, {"pushed_model": "tfx.PushedModel"}, executor), vertex.storage)
    (model,) = seen[0].inputs.artifacts["model"].artifacts
    (pushed,) = seen[0].outputs.artifacts["pushed_model"].artifacts
    assert (model.uri, pushed.uri) == ("gs://b/Trainer/model", f"{vertex.address}/pushed_model")
    assert list(files) == [f"{vertex.address}/executor_output.json"]
    assert not Path(vertex.storage.root).exists()


def test_an_output_file_in_a_bucket_is_renamed_there(monkeypatch):
    files = mock.create_autospec(fileio)
    monkeypatch.setattr(artifacts, "fileio", files)
    artifacts.write_output("gs://b/executor_output.json", pipeline_spec_pb2.ExecutorOutput())
    partial = "gs://b/executor_output.json.partial"
    files.open.assert_called_once_with(partial, "wb")
    files.rename.assert_called_once_with(partial, "gs://b/executor_output.json", overwrite=True)


def test_the_log_output_of_the_launcher_is_ignored(kubeflow, evaluator):
    """Check that the output is removed that the driver adds with PublishLogs (backend/src/v2/driver/driver.go)."""
    outputs = {**OUTPUTS, "executor-logs": "system.Artifact"}
    run_node(task_of(kubeflow, {"model": model_at("gs://b/m", "57")}, outputs), kubeflow.storage)
    assert sorted(kubeflow.read_output().artifacts) == sorted(OUTPUTS)


def test_unknown_fields_of_a_newer_backend_are_ignored(kubeflow, evaluator):
    inputs = {"model": ("tfx.Model", {"uri": "gs://b/m", "customPath": "/elsewhere"})}
    run_node(task_of(kubeflow, inputs), kubeflow.storage)
    assert kubeflow.output_file.is_file()


def test_a_failed_node_writes_no_output(kubeflow, monkeypatch):
    def fail(self, *arguments):
        raise RuntimeError("broken")

    monkeypatch.setattr(EvaluatorExecutor, "Do", fail)
    with pytest.raises(RuntimeError, match="broken"):
        run_node(task_of(kubeflow, {"model": model_at("gs://b/m", "57")}), kubeflow.storage)
    assert not kubeflow.output_file.exists()


def test_an_exit_handler_gets_the_final_status_and_no_artifacts(kubeflow, monkeypatch):
    seen = {}
    monkeypatch.setattr(Executor, "Do", lambda self, inputs, outputs, properties: seen.update(properties))
    status = {"state": "FAILED", "pipelineTaskName": "tfx-dag"}
    invocation, _ = kubeflow.arguments({}, parameters={"pipeline": "demo", "final_status": status})
    kinds = {"pipeline": {"parameterType": "STRING"}, "final_status": {"parameterType": "TASK_FINAL_STATUS"}}
    executor = "detloom.components.notifier.component.Executor"
    run_node(make_task("kubeflow", executor, invocation, json.dumps({"parameters": kinds})), kubeflow.storage)
    assert seen["pipeline"] == "demo"
    assert parse_final_status(seen["final_status"]).state == "FAILED"
    assert kubeflow.output_file.read_text() == "{}"


def test_parameter_values_are_not_logged(kubeflow, evaluator, task_log, capsys):
    task = task_of(kubeflow, {"model": model_at("gs://b/m", "57")}, parameters={"url": "planted-value"})
    run_node(task, kubeflow.storage)
    shown = capsys.readouterr()
    assert "planted-value" not in shown.out + shown.err
    (line,) = shown.out.splitlines()
    assert line.startswith("SomeNode on kubeflow: detloom ")


@pytest.mark.parametrize(
    ("place", "uri", "name"),
    [
        ("kubeflow", "minio://mlpipeline/v2/artifacts/demo/7f3a-1/Trainer/9c/model", "Trainer"),
        ("vertex", "gs://bucket/root/123/demo-20260101/Trainer_-842/model", "Trainer"),
        ("vertex", "gs://bucket/root/123/demo-20260101/Trainer/model", "Trainer"),
        ("kubeflow", "gs://b/model", "some.Executor"),
    ],
)
def test_the_node_name_is_read_from_output_addresses(place, uri, name):
    executor_input = pipeline_spec_pb2.ExecutorInput()
    task = make_task(place, "some.Executor")
    executor_input.outputs.output_file = "/tmp/kfp_outputs/output_metadata.json"
    assert node.node_name(executor_input, task) == "some.Executor"
    executor_input.outputs.output_file = uri  # a node can have no other output
    assert node.node_name(executor_input, task) == name
    executor_input.outputs.output_file = "/tmp/kfp_outputs/output_metadata.json"
    executor_input.outputs.artifacts["model"].artifacts.add(uri=uri)
    assert node.node_name(executor_input, task) == name


@pytest.mark.parametrize(
    ("name", "level", "message", "out", "err"),
    [
        ("detloom", logging.INFO, "saved at step 40", "saved at step 40\n", ""),
        ("detloom", logging.WARNING, "few images", "", "warning: few images\n"),
        ("apache_beam", logging.WARNING, "chatter", "", ""),
        ("apache_beam", logging.ERROR, "worker died", "", "error: worker died\n"),
        ("apache_beam.runners.dataflow.internal.apiclient", logging.INFO, "Created job", "Created job\n", ""),
    ],
)
def test_the_log_shows_our_lines_and_all_errors(task_log, capsys, name, level, message, out, err):
    logging.getLogger(name).log(level, message)
    assert capsys.readouterr() == (out, err)


def test_components_log_through_absl(task_log, capsys):
    from absl import logging as absl_logging

    from detloom.pipelines.samples import demo_data

    record = absl_logging.get_absl_logger().makeRecord(
        "absl", logging.INFO, demo_data.__file__, 1, "made %d", (3,), None
    )
    absl_logging.get_absl_logger().handle(record)
    absl_logging.info("of somebody else")
    assert capsys.readouterr() == ("made 3\n", "")
