import json
import pickle
from pathlib import Path

import pytest
import yaml
from google.protobuf import json_format, struct_pb2
from kfp.pipeline_spec import pipeline_spec_pb2
from tfx import v1 as tfx
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.orchestration.kubeflow.v2.container.kubeflow_v2_entrypoint_utils import parse_execution_properties
from tfx.types.standard_artifacts import ModelBlessing

from detloom.components.notifier.component import Notifier
from detloom.components.notifier.executor import NotifierParams
from detloom.components.notifier.failure import (
    FailureExecutor,
    FailureNotifier,
    FinalStatus,
    build_failure_notifier,
    describe_error,
    notify_failure,
    parse_final_status,
)
from detloom.components.properties import arguments_of
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.notifications import Notifications, Webhook

HOOK = Notifications(webhook=Webhook(url="env:HOOK"))
JOB = "projects/my-project/locations/us-central1/pipelineJobs/cells-1"
# As made by the open-source driver (backend/src/v2/driver/resolve.go): states of ML Metadata, no error.
OPEN_SOURCE = {
    "state": "FAILED",
    "pipelineJobResourceName": "demo-x7k2p",
    "pipelineTaskName": "tfx-dag",
    "error": {},
}
VERTEX = {
    "state": "FAILED",
    "pipelineJobResourceName": "projects/p/locations/us-central1/pipelineJobs/demo-1",
    "pipelineTaskName": "tfx-dag",
    "error": {
        "code": 9,
        "message": "The DAG failed because some tasks failed. The failed tasks are: [Trainer].; Job is failed.",
    },
}


def make_params(place, notifications=HOOK):
    return NotifierParams(pipeline="cells", notifications=notifications, place=place, kubeflow_host="https://k.example")


@pytest.fixture
def hook(web, monkeypatch):
    monkeypatch.setenv("HOOK", f"{web.url}/services/geheim")
    return web


def payloads(web):
    return [json.loads(request.body) for request in web.requests]


def test_executor_path_is_stable():
    # Compiled pipelines store it.
    assert FailureNotifier.EXECUTOR_SPEC.class_path == "detloom.components.notifier.failure.FailureExecutor"
    assert pickle.loads(pickle.dumps(FailureExecutor)) is FailureExecutor


def test_compiles_as_the_exit_handler_of_a_pipeline(tmp_path):
    params = make_params("kubeflow")
    blessing = tfx.dsl.Importer(source_uri="gs://b/x", artifact_type=ModelBlessing).with_id("Blessing")
    notifier = Notifier(**arguments_of(params), blessing=blessing.outputs["result"])
    runner = tfx.orchestration.experimental.KubeflowV2DagRunner(
        config=tfx.orchestration.experimental.KubeflowV2DagRunnerConfig(
            default_image="image", use_pipeline_spec_2_1=True
        ),
        output_filename="job.yaml",
        output_dir=str(tmp_path),
    )
    runner.set_exit_handler(build_failure_notifier(params))
    runner.run(tfx.dsl.Pipeline(pipeline_name="cells", pipeline_root="", components=[blessing, notifier]))
    job = yaml.safe_load(Path(tmp_path, "job.yaml").read_text())
    json_format.ParseDict(job, pipeline_spec_pb2.PipelineSpec())
    task = job["root"]["dag"]["tasks"]["FailureNotifier"]
    assert task["triggerPolicy"] == {"strategy": "ALL_UPSTREAM_TASKS_COMPLETED"}
    assert task["dependentTasks"] == ["tfx-dag"]
    assert task["inputs"]["parameters"]["final_status"] == {"taskFinalStatus": {"producerTask": "tfx-dag"}}
    assert task["inputs"]["parameters"]["run_id"] == {"runtimeValue": {"constant": "{{$.pipeline_job_uuid}}"}}


def test_exit_handler_refuses_a_secret_that_it_cannot_read():
    with pytest.raises(InputError, match="Kubernetes secret"):
        build_failure_notifier(make_params("vertex", Notifications(webhook=Webhook(url="kubernetes:hooks/url"))))


def end(place, status, **properties):
    FailureExecutor(BaseExecutor.Context()).Do(
        {}, {}, {**make_params(place).to_properties(), "final_status": status, **properties}
    )


def test_vertex_message_has_node_reason_and_link(hook):
    reason = "The DAG failed because some tasks failed. The failed tasks are: [Trainer]."
    status = {"state": "FAILED", "pipelineJobResourceName": JOB, "error": {"code": 9, "message": reason}}
    end("vertex", json.dumps(status), run_name="cells-1", run_id=JOB)
    (payload,) = payloads(hook)
    assert payload["text"].splitlines()[0] == "cells failed in Trainer"
    assert payload["node"] == "Trainer"
    assert payload["reason"] == reason
    assert payload["run"] == "cells-1"
    assert "/locations/us-central1/pipelines/runs/cells-1?project=my-project" in payload["links"]["Page of the run"]


def test_kubeflow_message_has_a_link_to_the_run(hook):
    status = {"state": "FAILED", "pipelineJobResourceName": "cells-x7k2p", "error": {}}
    end("kubeflow", json.dumps(status), run_name="monday", run_id="1a-2b")
    (payload,) = payloads(hook)
    assert payload["run"] == "monday"
    assert payload["links"] == {"Page of the run": "https://k.example/#/runs/details/1a-2b"}
    assert payload["reason"]


def test_run_name_is_taken_from_the_final_status_if_placeholders_are_missing(hook):
    end("vertex", {"state": "FAILED", "pipelineJobResourceName": JOB})
    (payload,) = payloads(hook)
    assert payload["run"] == JOB
    assert "Page of the run" in payload["links"]


@pytest.mark.parametrize("state", ["SUCCEEDED", "COMPLETE"])
def test_successful_run_sends_no_message(hook, state):
    end("kubeflow", json.dumps({"state": state}))
    assert hook.requests == []


def test_exit_handler_never_raises(caplog):
    FailureExecutor(BaseExecutor.Context()).Do({}, {}, {})
    assert "(KeyError)" in caplog.text


def test_local_message_has_node_and_error(hook):
    notify_failure("cells", HOOK, "Trainer", InputError("run.yaml:3: the rate is too high."), run_id="r1")
    (payload,) = payloads(hook)
    assert payload["text"].splitlines()[:2] == ["cells failed in Trainer", "run.yaml:3: the rate is too high."]
    assert payload["place"] == "local"
    assert payload["run"] == "r1"
    assert payload["machine"]


def test_failure_is_not_sent_if_the_event_is_disabled(hook):
    notify_failure("cells", Notifications(events=("pushed",), webhook=HOOK.webhook), None, InputError("x"))
    assert hook.requests == []


def test_notify_failure_never_raises(caplog):
    class Mean(Exception):
        def __str__(self):
            raise RuntimeError("geheim")

    notify_failure("cells", HOOK, None, Mean())
    assert "(RuntimeError)" in caplog.text
    assert "geheim" not in caplog.text


def test_error_other_than_input_error_is_type_and_first_line():
    assert describe_error(RuntimeError("no memory\n  at 0x1")) == "RuntimeError: no memory"
    assert describe_error(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_secrets_from_the_environment_are_hidden_in_an_error(monkeypatch):
    monkeypatch.setenv("HOOK", "https://hooks.example.org/services/T0/B0/geheim\n")
    monkeypatch.setenv("SMTP_PASSWORD", "sehrgeheim")
    monkeypatch.setenv("PIN_TOKEN", "on")  # too short to be hidden
    error = RuntimeError("POST https://hooks.example.org/services/T0/B0/geheim on: login sehrgeheim")
    assert describe_error(error, ["env:HOOK"]) == "RuntimeError: POST (hidden) on: login (hidden)"


def as_struct(fields):
    struct = struct_pb2.Struct()
    json_format.ParseDict(fields, struct)
    return struct


@pytest.mark.parametrize("form", [json.dumps, dict, as_struct], ids=["text", "dict", "struct"])
def test_text_dict_and_struct_are_parsed_alike(form):
    assert parse_final_status(form(OPEN_SOURCE)) == FinalStatus(state="FAILED", run="demo-x7k2p")
    vertex = parse_final_status(form(VERTEX))
    assert vertex.run == "projects/p/locations/us-central1/pipelineJobs/demo-1"
    assert vertex.failed_tasks == "Trainer"
    assert vertex.reason == VERTEX["error"]["message"]


def test_field_names_in_proto_spelling_are_accepted():
    assert parse_final_status({"state": "FAILED", "pipeline_job_resource_name": "r"}).run == "r"


@pytest.mark.parametrize("kind", ["STRING", "TASK_FINAL_STATUS"])
def test_struct_passes_through_tfx_parameter_parsing(kind):
    inputs = pipeline_spec_pb2.ExecutorInput()
    json_format.ParseDict({"inputs": {"parameterValues": {"final_status": VERTEX}}}, inputs)
    spec = pipeline_spec_pb2.ComponentInputsSpec()
    json_format.ParseDict({"parameters": {"final_status": {"parameterType": kind}}}, spec)
    properties = parse_execution_properties(inputs.inputs.parameter_values, inputs.inputs.parameters, spec)
    assert parse_final_status(properties["final_status"]).failed_tasks == "Trainer"


@pytest.mark.parametrize("state", ["SUCCEEDED", "COMPLETE", "CACHED"])
def test_successful_states(state):
    assert parse_final_status({"state": state}).is_success


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("FAILED", "could not be read"),
        ("CANCELLED", "cancelled"),
        ("CANCELED", "cancelled"),
        ("RUNNING", "(state RUNNING)"),
        ("", "(state unknown)"),
    ],
)
def test_reason_of_other_states(state, reason):
    status = parse_final_status({"state": state})
    assert not status.is_success
    assert reason in status.reason


@pytest.mark.parametrize(
    "value",
    [None, "", "{", "[]", "5", b"\xff", "null", 5, [], '{"state": 5, "error": "x"}', "[" * 100_000, {"error": []}],
)
def test_invalid_status_is_unknown(value):
    assert parse_final_status(value) == FinalStatus()
