import pytest

from detloom.pipelines.compile.task_settings import (
    retry_policy,
    set_caching,
    set_environment,
    set_retries,
    uncached_nodes,
)
from detloom.schemas.errors import InputError
from detloom.schemas.node_config import Retry

YEAR = "31536000s"  # 365 * 24 * 3600


def make_spec():
    tasks = {name: {"componentRef": {"name": name}, "cachingOptions": {"enableCache": True}} for name in ("A", "B")}
    return {
        "components": {name: {"executorLabel": name} for name in tasks},
        "deploymentSpec": {"executors": {name: {"container": {"image": "i"}} for name in tasks}},
        "root": {"dag": {"tasks": tasks}},
    }


def test_the_tasks_that_no_cache_may_answer_say_so():
    tasks = set_caching(make_spec(), {"B", "Elsewhere"})["root"]["dag"]["tasks"]
    assert tasks["A"]["cachingOptions"] == {"enableCache": True}
    assert tasks["B"]["cachingOptions"] == {}


def test_kubeflow_would_not_see_new_data_as_no_driver_runs_there(read_run):
    kubeflow = uncached_nodes(read_run("kubeflow_cpu"), "kubeflow")
    vertex = uncached_nodes(read_run("vertex_tpu_v5e"), "vertex")
    assert kubeflow - vertex == {"DetectionExampleGen"}
    assert {"Pusher", "ProductionModel", "RetrainDecision", "TrainingRecord", "Notifier"} <= vertex


def test_on_vertex_an_old_training_is_not_answered_by_itself(read_run):
    trained = {"Tuner", "Trainer"}
    assert trained <= uncached_nodes(read_run("vertex_gpu_dataflow"), "vertex")  # max_age_days: 30
    ageless = read_run("vertex_gpu_dataflow", "retrain.max_age_days=0")
    assert trained.isdisjoint(uncached_nodes(ageless, "vertex"))


def test_a_task_without_retries_has_no_policy():
    tasks = set_retries(make_spec(), {"A": Retry(), "B": Retry(max_retries=1)}, "vertex")["root"]["dag"]["tasks"]
    assert "retryPolicy" not in tasks["A"]
    assert tasks["B"]["retryPolicy"]["maxRetryCount"] == 1


def test_on_kubeflow_the_limit_on_all_tries_together_is_as_good_as_none():
    retry = Retry(max_retries=3, backoff_seconds=29.5, backoff_factor=3, max_backoff_seconds=300)
    assert retry_policy("Trainer", retry, "kubeflow") == {
        "backoffDuration": "30s",
        "backoffFactor": 3.0,
        "backoffMaxDuration": YEAR,
        "maxRetryCount": 3,
    }


def test_on_vertex_the_longest_wait_is_named_where_one_would_be_longer():
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
        ("kubeflow", {"max_retries": 7}, r"nodes, Pusher: max_backoff_seconds: got 1800, .* before try 8 is 1920 s"),
        ("kubeflow", {"max_retries": 2000}, r"nodes, Pusher: max_backoff_seconds: got 1800, .* before try 2001 is inf"),
        ("vertex", {"max_retries": 9, "max_backoff_seconds": 7200.0}, r"got 7200, allowed on Vertex AI .* 3600"),
    ],
)
def test_a_wait_that_the_backend_cannot_keep_is_refused(place, settings, message):
    with pytest.raises(InputError, match=message):
        retry_policy("Pusher", Retry(**settings), place)


def test_variables_of_a_container_are_sorted_and_of_the_others_none():
    spec = set_environment(make_spec(), {"A": {"Z": "1", "B": "2"}, "B": {}})
    executors = spec["deploymentSpec"]["executors"]
    assert executors["A"]["container"]["env"] == [{"name": "B", "value": "2"}, {"name": "Z", "value": "1"}]
    assert "env" not in executors["B"]["container"]
