import json

from detloom.pipelines.compile.container_command import (
    add_driver,
    entrypoint_command,
    refresh_input_specs,
    set_time_limits,
)
from detloom.pipelines.package_fingerprint import package_fingerprint

ARGS = [
    "--executor_class_path",
    "some.Executor",
    "--json_serialized_invocation_args",
    "{{$}}",
    "--json_serialized_inputs_spec_args",
    "{}",
    "--runner=DirectRunner",
]


def make_spec():
    container = {"command": entrypoint_command("vertex"), "args": list(ARGS)}
    component = {
        "executorLabel": "Gen_executor",
        "inputDefinitions": {"parameters": {"a": {"parameterType": "STRING"}}},
    }
    return {
        "components": {"Gen": component},
        "deploymentSpec": {"executors": {"Gen_executor": {"container": container}}},
        "root": {"dag": {"tasks": {}}},
    }


def container_of(spec):
    return spec["deploymentSpec"]["executors"]["Gen_executor"]["container"]


def test_every_command_names_place_and_code():
    module = "detloom.pipelines.container.entrypoint"
    expected = ["python", "-m", module, "--place", "kubeflow", "--package_fingerprint", package_fingerprint()]
    assert entrypoint_command("kubeflow") == expected


def test_a_time_limit_is_whole_seconds_behind_the_command():
    assert container_of(set_time_limits(make_spec(), {"Gen": 90.5}))["command"][-2:] == ["--time_limit_seconds", "91"]
    assert container_of(set_time_limits(make_spec(), {"Other": 90.5}))["command"] == entrypoint_command("vertex")


def test_the_driver_is_our_entrypoint_with_the_executors_arguments_but_its_class():
    spec = add_driver(refresh_input_specs(make_spec()), "Gen")
    hook = container_of(spec)["lifecycle"]["preCacheCheck"]
    assert hook["command"] == [*entrypoint_command("vertex"), "--driver"]
    assert hook["args"] == container_of(spec)["args"][2:]
    assert hook["args"][0] == "--json_serialized_invocation_args"


def test_what_a_container_is_told_of_its_inputs_follows_the_component():
    told = container_of(refresh_input_specs(make_spec()))["args"][5]
    assert json.loads(told) == {"parameters": {"a": {"parameterType": "STRING"}}}
    assert container_of(refresh_input_specs(make_spec()))["args"][6] == "--runner=DirectRunner"
