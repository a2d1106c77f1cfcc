import json

import pytest
from google.protobuf import json_format, struct_pb2
from kfp.pipeline_spec import pipeline_spec_pb2
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.orchestration.kubeflow.v2.container.kubeflow_v2_entrypoint_utils import parse_execution_properties

from detloom.components.notifier.build_message import (
    FinalStatus,
    build_failure_message,
    describe_error,
    parse_final_status,
)
from detloom.components.notifier.component import (
    Executor,
    NotifierParams,
    build_failure_notifier,
    notify_failure,
)
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


def test_exit_handler_refuses_a_secret_that_it_cannot_read():
    with pytest.raises(InputError, match="Kubernetes secret"):
        build_failure_notifier(make_params("vertex", Notifications(webhook=Webhook(url="kubernetes:hooks/url"))))


def end(place, status, **properties):
    Executor(BaseExecutor.Context()).Do(
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
    end("vertex", as_struct({"state": "FAILED", "pipelineJobResourceName": JOB}))
    (payload,) = payloads(hook)
    assert payload["run"] == JOB
    assert "Page of the run" in payload["links"]


@pytest.mark.parametrize("state", ["SUCCEEDED", "COMPLETE", "CACHED"])
def test_successful_run_sends_no_message(hook, state):
    end("kubeflow", json.dumps({"state": state}))
    assert hook.requests == []


def test_local_message_has_node_and_error(hook):
    notify_failure("cells", HOOK, "Trainer", InputError("run.yaml:3: the rate is too high."))
    (payload,) = payloads(hook)
    assert payload["text"].splitlines()[:2] == ["cells failed in Trainer", "run.yaml:3: the rate is too high."]
    assert payload["place"] == "local"
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


def failure_of(status, failures=None):
    return build_failure_message(status, make_params("vertex").about_run(), failures or {})


@pytest.mark.parametrize("form", [json.dumps, as_struct], ids=["text", "struct"])
def test_text_and_struct_are_parsed_alike(form):
    assert parse_final_status(form(OPEN_SOURCE)) == FinalStatus(state="FAILED", run="demo-x7k2p")
    vertex = parse_final_status(form(VERTEX))
    assert vertex.run == "projects/p/locations/us-central1/pipelineJobs/demo-1"
    assert failure_of(vertex).node == "Trainer"
    assert failure_of(vertex).reason == VERTEX["error"]["message"]


def test_several_failed_tasks_are_named_with_their_causes():
    message = failure_of(FinalStatus(state="FAILED"), {"Trainer": "out of memory", "Pusher": "", "Tuner": "killed"})
    assert (message.node, message.reason) == ("Trainer, Pusher, Tuner", "Trainer: out of memory Tuner: killed")


@pytest.mark.parametrize("kind", ["STRING", "TASK_FINAL_STATUS"])
def test_struct_passes_through_tfx_parameter_parsing(kind):
    inputs = pipeline_spec_pb2.ExecutorInput()
    json_format.ParseDict({"inputs": {"parameterValues": {"final_status": VERTEX}}}, inputs)
    spec = pipeline_spec_pb2.ComponentInputsSpec()
    json_format.ParseDict({"parameters": {"final_status": {"parameterType": kind}}}, spec)
    properties = parse_execution_properties(inputs.inputs.parameter_values, inputs.inputs.parameters, spec)
    assert failure_of(parse_final_status(properties["final_status"])).node == "Trainer"


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("FAILED", "(state FAILED)"),
        ("CANCELLED", "cancelled"),
        ("CANCELED", "cancelled"),
        ("", "(state unknown)"),
    ],
)
def test_reason_of_other_states(state, reason):
    status = FinalStatus(state=state)
    assert not status.is_success
    assert reason in status.reason


@pytest.mark.parametrize(
    "value",
    [None, "", "{", "[]", "5", "null", 5, '{"state": 5}', '{"state": "FAILED", "error": "x"}', "[" * 100_000],
)
def test_invalid_status_is_unknown(value):
    assert parse_final_status(value) == FinalStatus()
