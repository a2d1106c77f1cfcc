import json

import pytest
from conformance_driver.errors import TaskRefused
from conformance_driver.placeholders import expand, fill
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

EXECUTOR_INPUT = {
    "inputs": {
        "parameterValues": {"steps": 4, "rate": 0.5, "name": "a b", "on": True, "classes": ["x", "y"]},
        "artifacts": {
            "model": {"artifacts": [{"name": "7", "uri": "minio://b/model", "type": {"instanceSchema": ""}}]}
        },
    },
    "outputs": {"outputFile": "/tmp/out.json"},
}


def filled(*arguments):
    return fill(arguments, json_format.ParseDict(EXECUTOR_INPUT, pipeline_spec_pb2.ExecutorInput()))


def test_the_whole_input_is_json_in_camel_case_with_whole_numbers():
    (text,) = filled("{{$}}")
    assert json.loads(text) == EXECUTOR_INPUT
    assert '"steps":4}' in text


def test_single_values_are_replaced_inside_strings():
    assert filled("--steps={{$.inputs.parameters['steps']}}", "{{$.inputs.artifacts['model'].uri}}/x") == [
        "--steps=4",
        "minio://b/model/x",
    ]
    assert filled("{{$.inputs.parameters['rate']}} {{$.inputs.parameters['on']}}") == ["0.5 true"]
    assert filled("{{$.inputs.parameters['classes']}}", "{{$.outputs.output_file}}") == ['["x","y"]', "/tmp/out.json"]


def test_an_unknown_placeholder_is_refused():
    with pytest.raises(TaskRefused, match=r"inputs\.parameters\['epochs'\]"):
        filled("{{$.inputs.parameters['epochs']}}")


def test_kubernetes_expands_known_variables_and_double_dollars():
    assert expand(["$(NAME)-$(OTHER)", "a$$b", "{{$}}"], {"NAME": "pod"}) == ["pod-$(OTHER)", "a$b", "{{$}}"]
