import json

import pytest
from google.protobuf import json_format, struct_pb2
from kfp.pipeline_spec import pipeline_spec_pb2
from tfx.orchestration.kubeflow.v2.container.kubeflow_v2_entrypoint_utils import parse_execution_properties

from detloom.components.notifier.message_events import (
    FinalStatus,
    build_failure_message,
    describe_error,
    parse_final_status,
)

JOB = "projects/p/locations/us-central1/pipelineJobs/demo-1"
# As made by the open-source driver (backend/src/v2/driver/resolve.go): states of ML Metadata, no error.
OPEN_SOURCE = {
    "state": "FAILED",
    "pipelineJobResourceName": "demo-x7k2p",
    "pipelineTaskName": "tfx-dag",
    "error": {},
}
VERTEX = {
    "state": "FAILED",
    "pipelineJobResourceName": JOB,
    "pipelineTaskName": "tfx-dag",
    "error": {
        "code": 9,
        "message": "The DAG failed because some tasks failed. The failed tasks are: [Trainer].; Job is failed.",
    },
}
ABOUT = {"pipeline": "cells", "place": "vertex", "run": "", "subject": "", "machine": "", "links": {}}


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


@pytest.mark.parametrize("form", [json.dumps, as_struct], ids=["text", "struct"])
def test_text_and_struct_are_parsed_alike(form):
    assert parse_final_status(form(OPEN_SOURCE)) == FinalStatus(state="FAILED", run="demo-x7k2p")
    vertex = parse_final_status(form(VERTEX))
    assert vertex == FinalStatus(state="FAILED", run=JOB, message=VERTEX["error"]["message"])


@pytest.mark.parametrize("kind", ["STRING", "TASK_FINAL_STATUS"])
def test_struct_passes_through_tfx_parameter_parsing(kind):
    executor_input = pipeline_spec_pb2.ExecutorInput()
    json_format.ParseDict({"inputs": {"parameterValues": {"final_status": VERTEX}}}, executor_input)
    spec = pipeline_spec_pb2.ComponentInputsSpec()
    json_format.ParseDict({"parameters": {"final_status": {"parameterType": kind}}}, spec)
    given = executor_input.inputs
    properties = parse_execution_properties(given.parameter_values, given.parameters, spec)
    assert parse_final_status(properties["final_status"]).run == JOB


@pytest.mark.parametrize(
    "value",
    [None, "", "{", "[]", "5", "null", 5, '{"state": 5}', '{"error": "x"}', "[" * 100_000],
)
def test_invalid_status_is_unknown(value):
    assert parse_final_status(value) == FinalStatus()


def test_failure_message_of_vertex_has_node_reason_and_link():
    message = build_failure_message(parse_final_status(json.dumps(VERTEX)), ABOUT)
    assert (message.event, message.node, message.run) == ("failed", "Trainer", JOB)
    assert message.reason == VERTEX["error"]["message"]
    assert message.links["Page of the run"].endswith("/locations/us-central1/pipelines/runs/demo-1?project=p")


def test_known_facts_about_the_run_are_kept():
    known = {"run": "monday", "subject": "1a-2b", "links": {"Page of the run": "https://k.example"}}
    status = parse_final_status(json.dumps(OPEN_SOURCE))
    message = build_failure_message(status, {**ABOUT, "place": "kubeflow", **known})
    assert {name: getattr(message, name) for name in known} == known
    assert message.node == ""


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("FAILED", "(state FAILED)"),
        ("CANCELLED", "cancelled"),
        ("CANCELED", "cancelled"),
        ("", "(state unknown)"),
    ],
)
def test_reason_without_a_message(state, reason):
    assert reason in build_failure_message(FinalStatus(state=state), ABOUT).reason


@pytest.mark.parametrize("state", ["SUCCEEDED", "COMPLETE", "CACHED", "SKIPPED"])
def test_successful_run_is_not_reported(state):
    assert build_failure_message(FinalStatus(state=state), ABOUT) is None
