import json

import pytest

from detloom.components.fingerprints import describe_code
from detloom.pipelines.compile.spec_edits import (
    add_driver,
    declare_final_status,
    entrypoint_command,
    name_code,
    name_system_types,
    refresh_input_specs,
    retry_policy,
    set_caching,
    set_environment,
    set_retries,
    set_time_limits,
    uncached_nodes,
)
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.nodes import Retry

ARGS = [
    "--executor_class_path",
    "some.Executor",
    "--json_serialized_invocation_args",
    "{{$}}",
    "--json_serialized_inputs_spec_args",
    "{}",
    "--runner=DirectRunner",
]


def make_task_spec():
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


def test_a_command_names_the_code_of_its_task():
    entrypoint = "detloom.pipelines.container.entrypoint"
    assert entrypoint_command("vertex") == ["python", "-m", entrypoint, "--place", "vertex"]
    assert container_of(name_code(make_task_spec()))["command"][3:] == [
        *("--place", "vertex", "--code", describe_code(entrypoint))
    ]
    spec = make_task_spec()
    container_of(spec)["args"][1] = "detloom.components.notifier.component.Executor"
    named = describe_code(entrypoint, "detloom.components.notifier.component")
    assert container_of(name_code(spec))["command"][-1] == named


def test_a_time_limit_is_appended_in_whole_seconds():
    assert container_of(set_time_limits(make_task_spec(), {"Gen": 90.5}))["command"][-2:] == [
        "--time_limit_seconds",
        "91",
    ]
    assert container_of(set_time_limits(make_task_spec(), {"Other": 90.5}))["command"] == entrypoint_command("vertex")


def test_the_driver_command_has_the_executors_arguments_without_its_class():
    spec = add_driver(refresh_input_specs(make_task_spec()), "Gen")
    hook = container_of(spec)["lifecycle"]["preCacheCheck"]
    assert hook["command"] == [*entrypoint_command("vertex"), "--driver"]
    assert hook["args"] == container_of(spec)["args"][2:]
    assert hook["args"][0] == "--json_serialized_invocation_args"


def test_input_types_in_arguments_follow_the_component():
    argument = container_of(refresh_input_specs(make_task_spec()))["args"][5]
    assert json.loads(argument) == {"parameters": {"a": {"parameterType": "STRING"}}}
    assert container_of(refresh_input_specs(make_task_spec()))["args"][6] == "--runner=DirectRunner"


YEAR = "31536000s"  # 365 * 24 * 3600


def make_spec():
    tasks = {name: {"componentRef": {"name": name}, "cachingOptions": {"enableCache": True}} for name in ("A", "B")}
    return {
        "components": {name: {"executorLabel": name} for name in tasks},
        "deploymentSpec": {"executors": {name: {"container": {"image": "i"}} for name in tasks}},
        "root": {"dag": {"tasks": tasks}},
    }


def test_caching_is_disabled_for_the_given_tasks():
    tasks = set_caching(make_spec(), {"B", "Elsewhere"})["root"]["dag"]["tasks"]
    assert tasks["A"]["cachingOptions"] == {"enableCache": True}
    assert tasks["B"]["cachingOptions"] == {}


def test_example_gen_is_uncached_on_kubeflow_because_no_driver_runs_there(read_run):
    kubeflow = uncached_nodes(read_run("kubeflow_cpu"), "kubeflow")
    vertex = uncached_nodes(read_run("vertex_tpu_v5e"), "vertex")
    assert kubeflow - vertex == {"DetectionExampleGen"}
    assert {"Pusher", "ProductionModel", "RetrainDecision", "TrainingRecord", "Notifier"} <= vertex


def test_training_is_uncached_on_vertex_if_its_age_is_limited(read_run):
    trained = {"Tuner", "Trainer"}
    assert trained <= uncached_nodes(read_run("vertex_gpu_dataflow"), "vertex")  # max_age_days: 30
    ageless = read_run("vertex_gpu_dataflow", "retrain.max_age_days=0")
    assert trained.isdisjoint(uncached_nodes(ageless, "vertex"))


def test_a_task_without_retries_has_no_policy():
    tasks = set_retries(make_spec(), {"A": Retry(), "B": Retry(max_retries=1)}, "vertex")["root"]["dag"]["tasks"]
    assert "retryPolicy" not in tasks["A"]
    assert tasks["B"]["retryPolicy"]["maxRetryCount"] == 1


def test_on_kubeflow_the_total_time_of_all_tries_is_unlimited():
    retry = Retry(max_retries=3, backoff_seconds=29.5, backoff_factor=3, max_backoff_seconds=300)
    assert retry_policy("Trainer", retry, "kubeflow") == {
        "backoffDuration": "30s",
        "backoffFactor": 3.0,
        "backoffMaxDuration": YEAR,
        "maxRetryCount": 3,
    }


def test_on_vertex_the_maximum_wait_is_set_only_if_it_matters():
    short = Retry(max_retries=3, backoff_seconds=60, backoff_factor=1.5, max_backoff_seconds=200)  # 60, 90, 135
    assert retry_policy("Trainer", short, "vertex") == {
        "backoffDuration": "60s",
        "backoffFactor": 1.5,
        "backoffMaxDuration": "3600s",
        "maxRetryCount": 3,
    }
    long = Retry(max_retries=4, backoff_seconds=60, backoff_factor=1.5, max_backoff_seconds=200)  # then 202.5
    assert retry_policy("Trainer", long, "vertex")["backoffMaxDuration"] == "200s"
    assert retry_policy("Trainer", Retry(max_retries=2000), "vertex")["backoffMaxDuration"] == "1800s"


@pytest.mark.parametrize(
    ("place", "settings", "message"),
    [
        ("kubeflow", {"max_retries": 1, "backoff_factor": 1.5}, r"nodes, Pusher: backoff_factor: got 1\.5, .* whole"),
        # 30 * 2**6 = 1920, above the default of 1800
        ("kubeflow", {"max_retries": 7}, r"nodes, Pusher: max_backoff_seconds: got 1800, .* try 8 .*1920"),
        ("kubeflow", {"max_retries": 2000}, r"nodes, Pusher: max_backoff_seconds: got 1800, .* try 2001 .*inf"),
        ("vertex", {"max_retries": 9, "max_backoff_seconds": 7200.0}, r"got 7200, allowed on Vertex AI .* 3600"),
    ],
)
def test_a_wait_that_the_backend_does_not_support_is_refused(place, settings, message):
    with pytest.raises(InputError, match=message):
        retry_policy("Pusher", Retry(**settings), place)


def test_environment_variables_are_sorted_and_set_only_for_their_container():
    spec = set_environment(make_spec(), {"A": {"Z": "1", "B": "2"}, "B": {}})
    executors = spec["deploymentSpec"]["executors"]
    assert executors["A"]["container"]["env"] == [{"name": "B", "value": "2"}, {"name": "Z", "value": "1"}]
    assert "env" not in executors["B"]["container"]


def test_only_system_types_are_declared_by_title():
    page, ours = (
        {"instanceSchema": "title: system.HTML\ntype: object\n"},
        {"instanceSchema": "title: detloom.Rejects\n"},
    )
    outputs = {"page": {"artifactType": page}, "rejects": {"artifactType": ours}}
    spec = name_system_types({"components": {"A": {"outputDefinitions": {"artifacts": outputs}}, "B": {}}})
    named = spec["components"]["A"]["outputDefinitions"]["artifacts"]
    assert named["page"]["artifactType"] == {"schemaTitle": "system.HTML", "schemaVersion": "0.0.1"}
    assert named["rejects"]["artifactType"] == ours


def test_the_final_status_is_declared_as_task_final_status():
    task = {
        "componentRef": {"name": "A"},
        "inputs": {
            "parameters": {
                "status": {"taskFinalStatus": {"producerTask": "tfx-dag"}},
                "name": {"runtimeValue": {"constant": "x"}},
            }
        },
    }
    declared = {"status": {"parameterType": "STRING"}, "name": {"parameterType": "STRING"}}
    spec = {
        "root": {"dag": {"tasks": {"A": task}}},
        "components": {"A": {"inputDefinitions": {"parameters": declared}}},
    }
    edited = declare_final_status(spec)["components"]["A"]["inputDefinitions"]["parameters"]
    assert edited == {"status": {"parameterType": "TASK_FINAL_STATUS"}, "name": {"parameterType": "STRING"}}
    assert declared["status"] == {"parameterType": "STRING"}
