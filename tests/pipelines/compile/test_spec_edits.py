import pytest

from detloom.components.fingerprints import describe_code
from detloom.pipelines.compile.pipeline_spec import tasks_of
from detloom.pipelines.compile.spec_edits import (
    entrypoint_command,
    name_code,
    retry_policy,
    set_retries,
    set_time_limits,
)
from detloom.pipelines.tfx_line import tfx_line
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.nodes import Retry


def make_task_spec():
    args = ["--executor_class_path", "some.Executor"]
    container = {"command": entrypoint_command("vertex"), "args": args}
    return {
        "components": {"Gen": {"executorLabel": "Gen_executor"}},
        "deploymentSpec": {"executors": {"Gen_executor": {"container": container}}},
        "root": {"dag": {"tasks": {}}},
    }


def edited(edit, spec, *arguments):
    edit(spec, *arguments)
    return spec


def container_of(spec):
    return spec["deploymentSpec"]["executors"]["Gen_executor"]["container"]


def test_a_command_names_the_code_of_its_task():
    entrypoint = "detloom.pipelines.container.entrypoint"
    assert entrypoint_command("vertex") == ["python", "-m", entrypoint, "--place", "vertex"]
    assert container_of(edited(name_code, make_task_spec()))["command"][3:] == [
        *("--place", "vertex", f"--tfx={tfx_line()}", "--code", describe_code(entrypoint))
    ]
    spec = make_task_spec()
    container_of(spec)["args"][1] = "detloom.components.notifier.component.Executor"
    named = describe_code(entrypoint, "detloom.components.notifier.component")
    assert container_of(edited(name_code, spec))["command"][-1] == named


def test_a_time_limit_is_appended_in_whole_seconds():
    limited = edited(set_time_limits, make_task_spec(), {"Gen": 90.5})
    assert container_of(limited)["command"][-2:] == ["--time_limit_seconds", "91"]


def make_spec():
    tasks = {name: {"componentRef": {"name": name}, "cachingOptions": {"enableCache": True}} for name in ("A", "B")}
    return {
        "components": {name: {"executorLabel": name} for name in tasks},
        "deploymentSpec": {"executors": {name: {"container": {"image": "i"}} for name in tasks}},
        "root": {"dag": {"tasks": tasks}},
    }


def uncached_tasks(spec):
    return {name for name, task in tasks_of(spec).items() if task.get("cachingOptions") == {}}


def test_example_gen_is_uncached_on_kubeflow_because_no_driver_runs_there(compile_spec):
    kubeflow, vertex = uncached_tasks(compile_spec("kubeflow_gpu")), uncached_tasks(compile_spec("vertex_gpu_dataflow"))
    assert "DetectionExampleGen" in kubeflow - vertex
    shared = {"Pusher", "ProductionModel", "RetrainDecision", "TrainingRecord", "Notifier", "FailureNotifier"}
    assert shared <= kubeflow & vertex


def test_training_is_uncached_on_vertex_if_its_age_is_limited(compile_spec):
    assert "Trainer" in uncached_tasks(compile_spec("vertex_gpu_dataflow"))  # max_age_days: 30
    assert "Trainer" not in uncached_tasks(compile_spec("vertex_gpu_dataflow", "retrain.max_age_days=0"))


def test_a_task_without_retries_has_no_policy():
    spec = edited(set_retries, make_spec(), {"A": Retry(), "B": Retry(max_retries=1)}, "vertex")
    tasks = spec["root"]["dag"]["tasks"]
    assert "retryPolicy" not in tasks["A"]
    assert tasks["B"]["retryPolicy"]["maxRetryCount"] == 1


def test_on_kubeflow_the_total_time_of_all_tries_is_unlimited():
    retry = Retry(max_retries=3, backoff_seconds=29.5, backoff_factor=3, max_backoff_seconds=300)
    assert retry_policy("Trainer", retry, "kubeflow") == {
        "backoffDuration": "30s",
        "backoffFactor": 3.0,
        "backoffMaxDuration": "31536000s",
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
