import json

import pytest

from detloom.schemas.errors import InputError
from detloom.trainer_module.runtime.cluster import Cluster, cluster_of_hosts, find_cluster

JOB = {
    "DETLOOM_NUM_WORKERS": "2",
    "DETLOOM_SERVICE": "trainers",
    "JOB_COMPLETION_INDEX": "1",
    "HOSTNAME": "detector-1",
}


def tf_config(task_type="worker", index=1, **cluster):
    cluster = cluster or {"worker": ["a:2222", "b:2222"]}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": task_type, "index": index}})}


def test_machine_without_cluster_variables_trains_alone():
    assert find_cluster({}) is None
    assert find_cluster({"JOB_COMPLETION_INDEX": "3", "HOSTNAME": "sweep-3"}) is None  # a job that is not a cluster
    assert find_cluster({"TF_CONFIG": '{"task": {"type": "worker", "index": 0}}'}) is None


def test_tf_config_is_parsed():
    cluster = find_cluster(tf_config())
    assert cluster == Cluster(worker=("a:2222", "b:2222"), task_type="worker", task_index=1)
    assert cluster.tasks() == {"worker": ["a:2222", "b:2222"]}  # as TensorFlow expects: no task without addresses
    both = find_cluster(tf_config("chief", 0, chief=["c:1"], worker=["a:1"]))
    assert both.tasks() == {"chief": ["c:1"], "worker": ["a:1"]}


@pytest.mark.parametrize(
    ("task_type", "index", "with_chief", "expected"),
    [("worker", 0, False, True), ("worker", 1, False, False), ("chief", 0, True, True), ("worker", 0, True, False)],
)
def test_chief_is_the_chief_task_or_the_first_worker(task_type, index, with_chief, expected):
    chief = {"chief": ["c:1"]} if with_chief else {}
    assert find_cluster(tf_config(task_type, index, **chief, worker=["a:1", "b:1"])).is_chief is expected


def test_pools_of_vertex_ai_are_parsed():
    spec = {
        "cluster": {
            "workerpool0": ["cmle-training-workerpool0-ab-0:2222"],
            "workerpool1": ["cmle-training-workerpool1-ab-0:2222", "cmle-training-workerpool1-ab-1:2222"],
            "workerpool2": ["cmle-training-workerpool2-ab-0:2222"],  # a Reduction Server
        },
        "environment": "cloud",
        "task": {"type": "workerpool1", "index": 1},
        "job": "{}",
    }
    cluster = find_cluster({"CLUSTER_SPEC": json.dumps(spec)})
    assert cluster.chief == ("cmle-training-workerpool0-ab-0:2222",)
    assert cluster.worker == ("cmle-training-workerpool1-ab-0:2222", "cmle-training-workerpool1-ab-1:2222")
    assert (cluster.task_type, cluster.task_index, cluster.is_chief, cluster.num_tasks) == ("worker", 1, False, 3)


def test_pool_that_does_not_train_is_refused_with_an_alternative():
    spec = {"cluster": {"workerpool0": ["a:1"], "workerpool3": ["b:1"]}, "task": {"type": "workerpool3", "index": 0}}
    with pytest.raises(InputError, match=r"CLUSTER_SPEC: task\.type: got 'workerpool3'.*evaluate --watch"):
        find_cluster({"CLUSTER_SPEC": json.dumps(spec)})


def test_indexed_job_uses_the_pod_names_of_kubernetes():
    cluster = find_cluster(JOB)
    assert cluster.worker == ("detector-0.trainers:2222", "detector-1.trainers:2222")
    assert (cluster.task_index, cluster.is_chief) == (1, False)
    assert find_cluster({**JOB, "DETLOOM_PORT": "3333"}).worker[0] == "detector-0.trainers:3333"


def test_machine_is_found_in_a_list_of_hosts():
    hosts = {"DETLOOM_HOSTS": "node-a, node-b:3333"}
    cluster = cluster_of_hosts(hosts, "node-b.rack1.example")
    assert cluster == Cluster(worker=("node-a:2222", "node-b:3333"), task_type="worker", task_index=1)
    assert cluster_of_hosts({**hosts, "DETLOOM_HOST_INDEX": "0"}, "elsewhere").is_chief
    with pytest.raises(InputError, match=r"'c'.* 0 times \(.*DETLOOM_HOST_INDEX"):
        cluster_of_hosts(hosts, "c")


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"TF_CONFIG": "{"}, "^TF_CONFIG: "),
        ({"TF_CONFIG": "[]"}, "^TF_CONFIG: "),
        (
            {"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1e999}}'},
            "^TF_CONFIG: ",
        ),
        ({"TF_CONFIG": "[" * 100_000}, "^TF_CONFIG: "),
        ({"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'}, r"TF_CONFIG: task\.type"),
        (tf_config(index=2), r"TF_CONFIG: index: got 2, allowed: 0 to 1"),
        (tf_config(index=-1), r"TF_CONFIG: index: got -1"),
        (tf_config("chief", 0), r"TF_CONFIG: task\.type: got 'chief', allowed: worker"),
        (tf_config("evaluator", 0), r"evaluate --watch"),
        (tf_config("worker", 0, worker=["a:1"], ps=["b:1"]), "got 'ps'"),
        (tf_config("worker", 0, worker=["a"]), r"got the address 'a', allowed: host:port"),
        (tf_config("worker", 0, worker=["a:70000"]), r"got the address 'a:70000'"),
        (tf_config("worker", 0, worker=["a:1", "a:1"]), "a:1 .*2 times"),
        (tf_config("chief", 0, chief=["a:1", "b:1"]), r"got 2 chiefs, allowed: 1"),
        ({**JOB, "DETLOOM_SERVICE": ""}, "^DETLOOM_SERVICE .*DETLOOM_NUM_WORKERS"),
        ({**JOB, "JOB_COMPLETION_INDEX": "2"}, r"HOSTNAME: got 'detector-1', allowed: <job>-2"),
        ({**JOB, "JOB_COMPLETION_INDEX": "2", "HOSTNAME": "detector-2"}, r"index: got 2, allowed: 0 to 1"),
        ({**JOB, "DETLOOM_NUM_WORKERS": "0"}, r"^DETLOOM_NUM_WORKERS: got 0, allowed: 1 or more"),
        ({**JOB, "DETLOOM_NUM_WORKERS": "two"}, "DETLOOM_NUM_WORKERS: got 'two'"),
        ({"DETLOOM_HOSTS": ",", "DETLOOM_HOST_INDEX": "0"}, "^DETLOOM_HOSTS: got ','"),
        ({"DETLOOM_HOSTS": "a,b", "DETLOOM_HOST_INDEX": "2"}, r"DETLOOM_HOST_INDEX: index: got 2"),
    ],
)
def test_invalid_environment_names_the_variable(environment, message):
    with pytest.raises(InputError, match=message):
        find_cluster(environment)


def test_huge_cluster_is_checked_in_linear_time():
    many = {**JOB, "DETLOOM_NUM_WORKERS": "200000"}  # comparing all pairs of addresses would take minutes
    assert find_cluster(many).num_tasks == 200_000
