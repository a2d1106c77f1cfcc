import json

import pytest
from google.protobuf import json_format, struct_pb2
from kfp.pipeline_spec import pipeline_spec_pb2
from tfx.orchestration.kubeflow.v2.container.kubeflow_v2_entrypoint_utils import parse_execution_properties

from detloom.components.notifier.final_status import FinalStatus, parse_final_status

# As the open-source driver makes it (backend/src/v2/driver/resolve.go): states of ML Metadata, no error.
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


def as_struct(fields):
    struct = struct_pb2.Struct()
    json_format.ParseDict(fields, struct)
    return struct


@pytest.mark.parametrize("form", [json.dumps, dict, as_struct], ids=["text", "dict", "struct"])
def test_text_and_struct_say_the_same(form):
    assert parse_final_status(form(OPEN_SOURCE)) == FinalStatus(state="FAILED", run="demo-x7k2p")
    vertex = parse_final_status(form(VERTEX))
    assert vertex.run == "projects/p/locations/us-central1/pipelineJobs/demo-1"
    assert vertex.failed_tasks == "Trainer"
    assert vertex.reason == VERTEX["error"]["message"]


def test_names_are_read_in_the_spelling_of_the_proto_too():
    assert parse_final_status({"state": "FAILED", "pipeline_job_resource_name": "r"}).run == "r"


@pytest.mark.parametrize("kind", ["STRING", "TASK_FINAL_STATUS"])
def test_a_struct_passes_through_tfxs_reading_of_parameters(kind):
    inputs = pipeline_spec_pb2.ExecutorInput()
    json_format.ParseDict({"inputs": {"parameterValues": {"final_status": VERTEX}}}, inputs)
    spec = pipeline_spec_pb2.ComponentInputsSpec()
    json_format.ParseDict({"parameters": {"final_status": {"parameterType": kind}}}, spec)
    properties = parse_execution_properties(inputs.inputs.parameter_values, inputs.inputs.parameters, spec)
    assert parse_final_status(properties["final_status"]).failed_tasks == "Trainer"


@pytest.mark.parametrize("state", ["SUCCEEDED", "COMPLETE", "CACHED"])
def test_a_good_end_is_one(state):
    assert parse_final_status({"state": state}).is_success


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("FAILED", "The backend does not tell its exit handler which node failed; the page of the run does."),
        ("CANCELLED", "The run was cancelled."),
        ("CANCELED", "The run was cancelled."),
        ("RUNNING", "The run ended and the backend has not noted how (state RUNNING)."),
        ("", "The run ended and the backend has not noted how (state unknown)."),
    ],
)
def test_another_end_says_what_is_known(state, reason):
    status = parse_final_status({"state": state})
    assert not status.is_success
    assert status.reason == reason


@pytest.mark.parametrize(
    "value",
    [None, "", "{", "[]", "5", b"\xff", "null", 5, [], '{"state": 5, "error": "x"}', "[" * 100_000, {"error": []}],
)
def test_what_cannot_be_read_is_an_unknown_end(value):
    assert parse_final_status(value) == FinalStatus()
