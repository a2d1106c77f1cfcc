"""Look at the pods of the demo's run: permissions, resources, disk, and where secrets are."""

import base64
import urllib.parse

import pytest
from cluster_access.helper_pod import MOUNT
from cluster_access.pods import as_json, container_of, task_of, wait_for
from conftest import HOOK_TOKEN
from kubernetes.client.exceptions import ApiException
from kubernetes.utils import parse_quantity

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]
GIBI = 2**30
# Kubernetes adds these when it creates the pod; they refer to the namespace, or to the machine.
ADDED = ("nodeName", "serviceAccount", "serviceAccountName")
TOKEN_VOLUME = "kube-api-access-"
FORMS = [
    HOOK_TOKEN,
    urllib.parse.quote(HOOK_TOKEN, safe=""),
    base64.b64encode(HOOK_TOKEN.encode()).decode().rstrip("="),
]


@pytest.fixture(scope="module")
def pods(demo_run, cluster):
    """Return the pods of the demo's tasks by task; Argo keeps them until it deletes the workflow."""
    found = cluster.pods_of(demo_run["run_id"])
    assert found, "the pods are gone"
    return found


@pytest.fixture
def restricted_namespace(cluster):
    name = f"{cluster.namespace}-restricted-test"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.core.create_namespace({"metadata": {"name": name, "labels": labels}})

    def has_account():  # pods are refused until the namespace has it
        found = cluster.core.list_namespaced_service_account(name).items
        return any(each.metadata.name == "default" for each in found)

    wait_for(has_account, f"the service account of {name}", 60)
    yield name
    cluster.core.delete_namespace(name)


def test_all_pods_are_admitted_under_the_restricted_profile(pods, cluster, restricted_namespace):
    """Needs the permission to create and delete a namespace, `kubeflow-restricted-test`; nothing runs in it."""
    refused = {}
    for pod in pods:
        try:
            cluster.core.create_namespaced_pod(restricted_namespace, copy_of(cluster.plain(pod)), dry_run="All")
        except ApiException as error:
            refused[pod.metadata.name] = error.body
    assert refused == {}


def copy_of(pod):
    spec = {key: value for key, value in pod["spec"].items() if key not in ADDED}
    spec["automountServiceAccountToken"] = False
    spec["volumes"] = [each for each in spec.get("volumes", ()) if not each["name"].startswith(TOKEN_VOLUME)]
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        mounts = container.get("volumeMounts", ())
        container["volumeMounts"] = [each for each in mounts if not each["name"].startswith(TOKEN_VOLUME)]
    return {"metadata": {"name": pod["metadata"]["name"]}, "spec": spec}


def resources_of(cluster, demo_run, task):
    (pod,) = cluster.pods_of(demo_run["run_id"], task)
    found = container_of(pod).resources
    return {
        kind: {name: parse_quantity(value) for name, value in (getattr(found, kind) or {}).items()}
        for kind in ("requests", "limits")
    }


def test_requests_limits_and_disk_are_those_of_the_run_file(demo_run, cluster):
    found = resources_of(cluster, demo_run, "StatisticsGen")
    disk = found["limits"].pop("ephemeral-storage")
    assert disk == 4 * GIBI
    assert found["limits"] == {"memory": pytest.approx(4 * GIBI, rel=1e-6)}
    assert float(found["requests"]["cpu"]) == pytest.approx(0.1)
    assert found["requests"]["memory"] == pytest.approx(4 * GIBI, rel=1e-6)


def test_a_limit_can_differ_from_its_request(demo_run, cluster):
    found = resources_of(cluster, demo_run, "DatasetValidator")
    assert float(found["limits"]["cpu"]) == pytest.approx(2.0)
    assert float(found["requests"]["cpu"]) == pytest.approx(0.1)
    assert found["limits"]["memory"] == pytest.approx(4 * GIBI, rel=1e-6)
    assert found["requests"]["memory"] == pytest.approx(2 * GIBI, rel=1e-6)


def test_tasks_manage_with_the_shared_memory_that_every_pod_has(demo_run, pods):
    """Needs nothing else. Jobs mount nothing at /dev/shm, which then has 64 MB."""
    mounts = [mount.mount_path for pod in pods for mount in container_of(pod).volume_mounts or ()]
    assert not [path for path in mounts if path.startswith("/dev/shm")]
    assert demo_run["state"] == "succeeded"


def test_only_tasks_that_use_the_volume_get_it(demo_run, cluster):

    def mounts_of(task):
        (pod,) = cluster.pods_of(demo_run["run_id"], task)
        return [mount.mount_path for mount in container_of(pod).volume_mounts]

    assert MOUNT in mounts_of("Pusher")
    assert MOUNT in mounts_of("Trainer")
    assert MOUNT not in mounts_of("StatisticsGen")
    assert MOUNT not in mounts_of("DetectionExampleGen")


def test_only_notifiers_get_the_secret(demo_run, pods, session_name):

    def secrets_of(pod):
        sources = [each.value_from and each.value_from.secret_key_ref for each in container_of(pod).env or ()]
        return {source.name for source in sources if source}

    assert {task_of(pod) for pod in pods if session_name in secrets_of(pod)} == {"Notifier", "FailureNotifier"}


def test_the_secret_is_nowhere_else(demo_run, pods, cluster, demo_pipeline, helper):
    """Needs the permission to read config maps, events and logs, and the service `metadata-grpc-service`."""
    core, namespace, run_id = cluster.core, cluster.namespace, demo_run["run_id"]
    api = demo_pipeline.api()
    logs = {(pod.metadata.name, name): log for pod in pods for name, log in cluster.logs_of(pod)}
    things = {
        "pods": [cluster.plain(pod) for pod in pods],
        "workflow": cluster.workflow_of(run_id),
        "config maps": cluster.plain(core.list_namespaced_config_map(namespace)),
        "events": cluster.plain(core.list_namespaced_event(namespace)),
        "API v2beta1": api.send("GET", f"/apis/v2beta1/runs/{run_id}", "read the run"),
        "API v1beta1": api.send("GET", f"/apis/v1beta1/runs/{run_id}", "read the run"),
        "ML Metadata": helper.dump_metadata(),
        "logs": list(logs.values()),
    }
    assert any("step" in log for log in logs.values())
    assert [name for name, thing in things.items() if contains_secret(as_json(thing))] == []
    assert helper.files_under(MOUNT)
    assert [file for form in FORMS for file in helper.files_with(MOUNT, form)] == []


def contains_secret(text):
    return any(form in text for form in FORMS)
