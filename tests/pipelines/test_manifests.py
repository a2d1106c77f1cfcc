"""Read manifests with the classes of Kubernetes' client, which drop unknown fields."""

import json
from types import SimpleNamespace

import pytest
import yaml
from kubernetes.client import ApiClient

from detloom.pipelines.manifests import format_manifest
from detloom.schemas.errors import InputError
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.reading.typed_dict import from_json
from detloom.trainer_module.runtime.cluster import find_cluster

KUBEFLOW = {
    "image": "registry.example.org/detloom:1.0",
    "image_pull_policy": "Always",
    "image_pull_secrets": ["registry"],
    "namespace": "vision",
    "service_account": "trainer",
    "volumes": [{"claim": "shared", "mount_path": "/data"}],
    "secrets": [{"variable": "STORE_KEY", "secret": "store", "key": "key"}],
}
NODES = [
    {"node": "*", "tolerations": [{"key": "batch"}]},
    {
        "node": "Trainer",
        "cpu": "8",
        "memory": "32Gi",
        "max_retries": 2,
        "time_limit_minutes": 90,
        "accelerator": {"type": "nvidia-l4", "count": 4},
        "image": "registry.example.org/detloom:1.0-gpu",
    },
]


@pytest.fixture
def build(run_of):
    """Return a function that builds the manifest of a run and returns its objects."""

    def build(kubeflow=KUBEFLOW, nodes=NODES, sections=(), **values):
        run = run_of(kubeflow=kubeflow, nodes=nodes, **dict(sections))
        defaults = {"workers": 3, "examples": "/data/examples", "out": "/data/runs/cells"}
        return list(yaml.safe_load_all(format_manifest(run, **{**defaults, **values})))

    return build


def read_by_kubernetes(value, kind):
    """Read the value with Kubernetes' class and return the result, which is equal if the class has all fields."""
    client = ApiClient()
    read = client.deserialize(SimpleNamespace(data=json.dumps(value)), kind)
    return client.sanitize_for_serialization(read)


def pod_of(job):
    return job["spec"]["template"]["spec"]


def variables_of(pod):
    return {variable["name"]: variable.get("value", "a secret") for variable in pod["containers"][0]["env"]}


def test_indexed_job_matches_kubernetes_classes(build):
    config, service, job = build(name="cells")
    assert [each["kind"] for each in (config, service, job)] == ["ConfigMap", "Service", "Job"]
    for document, kind in ((config, "V1ConfigMap"), (service, "V1Service"), (job, "V1Job")):
        assert read_by_kubernetes(document, kind) == document
        assert document["metadata"]["namespace"] == "vision"
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 3, 3)
    assert spec["backoffLimit"] == 6  # two restarts, in each of which all three pods fail
    labels = spec["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert labels["sidecar.istio.io/inject"] == "false"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert pod_of(job)["subdomain"] == service["metadata"]["name"] == "cells"


def test_each_pod_finds_the_others_by_the_service_names_and_has_the_strategy(build):
    strategy = {"kind": "multi_worker", "communication": "ring"}
    variables = variables_of(pod_of(build(name="cells", sections={"trainer": {"strategy": strategy}})[-1]))
    assert json.loads(variables["DETLOOM_STRATEGY"])["communication"] == "ring"
    for index in range(3):
        cluster = find_cluster({**variables, "JOB_COMPLETION_INDEX": str(index), "HOSTNAME": f"cells-{index}"})
        assert cluster.worker == ("cells-0.cells:2222", "cells-1.cells:2222", "cells-2.cells:2222")
        assert cluster.task_index == index


def test_pod_has_the_trainer_settings_of_the_run_file(build):
    pod = pod_of(build()[-1])
    (container,) = pod["containers"]
    assert container["resources"] == {
        "limits": {"memory": "32Gi", "nvidia.com/gpu": "4"},
        "requests": {"cpu": "8", "memory": "32Gi"},
    }
    assert (container["image"], container["imagePullPolicy"]) == ("registry.example.org/detloom:1.0-gpu", "Always")
    assert container["ports"] == [{"name": "train", "containerPort": 2222}]
    assert pod["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-l4"}
    assert [each["key"] for each in pod["tolerations"]] == ["batch", "nvidia.com/gpu"]
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["activeDeadlineSeconds"] == 5400  # 90 minutes
    assert pod["terminationGracePeriodSeconds"] == 120
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["fsGroup"] == 1000
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert mounts == {"config": "/etc/detloom", "volume-0": "/data", "shared-memory": "/dev/shm"}
    assert volumes["shared-memory"]["emptyDir"]["medium"] == "Memory"
    assert pod["serviceAccountName"] == "trainer"
    assert volumes["volume-0"]["persistentVolumeClaim"] == {"claimName": "shared"}
    secret = {"name": "STORE_KEY", "valueFrom": {"secretKeyRef": {"name": "store", "key": "key"}}}
    assert secret in container["env"]
    assert {"name": "DETLOOM_STRATEGY", "value": "multi_worker"} in container["env"]
    assert {"name": "DETLOOM_GPUS", "value": "4"} in container["env"]


def test_command_is_detloom_train_with_the_config_map(build, run_of):
    documents = build(examples="/data/$HOME")
    container = pod_of(documents[-1])["containers"][0]
    # Kubernetes replaces $$ by $.
    assert " ".join((*container["command"], *container["args"])) == (
        "python -m detloom.pipelines.cli train /etc/detloom/config.json --examples /data/$$HOME --out /data/runs/cells"
    )
    config = documents[0]
    assert pod_of(documents[-1])["volumes"][0]["configMap"] == {"name": config["metadata"]["name"]}
    expected = run_of(kubeflow=KUBEFLOW, nodes=NODES).config
    assert from_json(TrainEvalConfig, config["data"]["config.json"]) == expected


def test_other_settings_have_another_config_map(build):
    names = [
        build(sections=sections, name="cells")[0]["metadata"]["name"]
        for sections in ({}, {}, {"train": {"batch_size": 8, "num_steps": 8}})
    ]
    assert names[0].startswith("cells-config-")
    assert names[0] == names[1] != names[2]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"examples": "/elsewhere"}, r"--examples: got '/elsewhere', allowed: .*kubeflow\.volumes.*\(/data\)"),
        ({"out": "/data/../x"}, r"--out: got '/data/\.\./x'"),
        ({"out": "gs://bucket/run"}, r"--out: got 'gs://bucket/run'"),
        ({"kubeflow": None}, r"kubeflow: the section is missing"),
        ({"kubeflow": {"image": "a/b:1"}}, r"--examples: .*kubeflow\.volumes"),
        ({"nodes": [{"node": "Trainer", "accelerator": {"type": "tpu-v5e", "count": 8}}]}, "Trainer: got tpu-v5e"),
        ({"sections": {"trainer": {"strategy": {"kind": "mirrored"}}}}, r"strategy\.kind: got 'mirrored'"),
        ({"name": "Cells"}, "--name: got 'Cells'"),
        ({"name": "c" * 41}, "--name: got 'c+'.* 40 "),
        ({"name": "cells-"}, "--name: got 'cells-'"),
    ],
)
def test_invalid_settings_are_refused(build, values, message):
    with pytest.raises(InputError, match=message):
        build(**values)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("small_cells", "small-cells"), ("a" * 50, "a" * 40), ("a_", "a"), ("2024_cells", "run-2024-cells")],
)
def test_default_name_is_valid_in_kubernetes(run_of, name, expected):
    run = run_of(name=name, kubeflow=KUBEFLOW)
    text = format_manifest(run, workers=2, examples="/data/e", out="/data/o")
    assert list(yaml.safe_load_all(text))[-1]["metadata"]["name"] == expected
