"""Read manifests with the classes of Kubernetes' client, which drop unknown fields.

The fields of JobSet and TFJob are compared with their CRDs: kubernetes-sigs/jobset,
config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml; kubeflow/training-operator,
manifests/base/crds/kubeflow.org_tfjobs.yaml.
"""

import json
from types import SimpleNamespace

import pytest
import yaml
from kubernetes.client import ApiClient

from detloom.pipelines.manifests.build_manifest import build_manifest, to_yaml
from detloom.pipelines.manifests.training_pod import Training, default_name
from detloom.schemas.errors import InputError
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.reading.typed_dict import from_json
from detloom.trainer_module.runtime.cluster import find_cluster

KUBEFLOW = {
    "image": "registry.example.org/detloom:1.0",
    "image_pull_policy": "Always",
    "image_pull_secrets": ["registry"],
    "namespace": "vision",
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
    },
]


@pytest.fixture
def training(run_of):
    def make(kubeflow=KUBEFLOW, nodes=NODES, sections=(), **values):
        run = run_of(kubeflow=kubeflow, nodes=nodes, **dict(sections))
        defaults = {"name": "cells", "workers": 3, "examples": "/data/examples", "out": "/data/runs/cells"}
        return Training(run=run, **{**defaults, **values})

    return make


def read_by_kubernetes(value, kind):
    """Read the value with Kubernetes' class and return the result, which is equal if the class has all fields."""
    client = ApiClient()
    read = client.deserialize(SimpleNamespace(data=json.dumps(value)), kind)
    return client.sanitize_for_serialization(read)


def pod_of(document):
    spec = document["spec"]
    match document["kind"]:
        case "JobSet":
            return spec["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
        case "Job":
            return spec["template"]["spec"]
        case "TFJob":
            return spec["tfReplicaSpecs"]["Worker"]["template"]["spec"]


def variables_of(pod, controller):
    """Return the environment of the container, with annotations as set by the controller."""
    found = {}
    for variable in pod["containers"][0]["env"]:
        source = variable.get("valueFrom", {})
        if "fieldRef" in source:
            found[variable["name"]] = controller[source["fieldRef"]["fieldPath"].split("'")[1]]
        else:
            found[variable["name"]] = variable.get("value", "a secret")
    return found


def test_indexed_job_matches_kubernetes_classes(training):
    config, service, job = build_manifest(training(), "job")
    assert [each["kind"] for each in (config, service, job)] == ["ConfigMap", "Service", "Job"]
    for document, kind in ((config, "V1ConfigMap"), (service, "V1Service"), (job, "V1Job")):
        assert read_by_kubernetes(document, kind) == document
        assert document["metadata"]["namespace"] == "vision"
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 3, 3)
    assert spec["backoffLimit"] == 6  # two restarts, in each of which all three pods fail
    labels = spec["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert service["spec"]["clusterIP"] == "None"
    assert pod_of(job)["subdomain"] == service["metadata"]["name"]


def test_each_pod_of_the_job_finds_the_others_by_the_service_names(training):
    job = build_manifest(training(), "job")[-1]
    variables = variables_of(pod_of(job), {})
    for index in range(3):
        cluster = find_cluster({**variables, "JOB_COMPLETION_INDEX": str(index), "HOSTNAME": f"cells-{index}"})
        assert cluster.worker == ("cells-0.cells:2222", "cells-1.cells:2222", "cells-2.cells:2222")
        assert cluster.task_index == index


def test_job_set_matches_its_crd(training):
    config, job_set = build_manifest(training(), "jobset")
    assert (job_set["apiVersion"], job_set["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    spec = job_set["spec"]
    assert set(spec) == {"failurePolicy", "network", "replicatedJobs"}
    assert spec["failurePolicy"] == {"maxRestarts": 2}
    assert spec["network"] == {"enableDNSHostnames": True, "publishNotReadyAddresses": True}
    (replicated,) = spec["replicatedJobs"]
    assert set(replicated) == {"name", "replicas", "template"}
    template = replicated["template"]["spec"]
    assert read_by_kubernetes(template, "V1JobSpec") == template
    assert template["backoffLimit"] == 0  # the set restarts all pods; the job does not restart a single one
    assert read_by_kubernetes(config, "V1ConfigMap") == config


def test_each_pod_of_the_job_set_finds_the_others(training):
    job_set = build_manifest(training(), "jobset")[-1]
    controller = {
        "jobset.sigs.k8s.io/jobset-name": "cells",
        "jobset.sigs.k8s.io/replicatedjob-name": job_set["spec"]["replicatedJobs"][0]["name"],
        "jobset.sigs.k8s.io/replicatedjob-replicas": "1",
        "jobset.sigs.k8s.io/job-index": "0",
    }
    for index in range(3):
        variables = variables_of(pod_of(job_set), controller)
        cluster = find_cluster({**variables, "JOB_COMPLETION_INDEX": str(index)})
        expected = tuple(f"cells-workers-0-{pod}.cells:2222" for pod in range(3))
        assert (cluster.worker, cluster.task_index) == (expected, index)


def test_tf_job_matches_its_crd(training):
    _, job = build_manifest(training(), "tfjob")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "TFJob")
    assert set(job["spec"]) == {"runPolicy", "tfReplicaSpecs"}
    assert job["spec"]["runPolicy"] == {"backoffLimit": 6, "cleanPodPolicy": "Running"}
    worker = job["spec"]["tfReplicaSpecs"]["Worker"]
    assert (worker["replicas"], worker["restartPolicy"]) == (3, "OnFailure")
    assert read_by_kubernetes(worker["template"], "V1PodTemplateSpec") == worker["template"]
    (container,) = worker["template"]["spec"]["containers"]
    assert container["name"] == "tensorflow"  # the operator sets TF_CONFIG in the container of this name
    assert container["ports"] == [{"name": "tfjob-port", "containerPort": 2222}]
    assert variables_of(pod_of(job), {}) == {"DETLOOM_STRATEGY": "multi_worker", "STORE_KEY": "a secret"}


@pytest.mark.parametrize("kind", ["jobset", "job", "tfjob"])
def test_pod_has_the_trainer_settings_of_the_run_file(training, kind):
    pod = pod_of(build_manifest(training(), kind)[-1])
    (container,) = pod["containers"]
    assert container["resources"] == {
        "limits": {"memory": "32Gi", "nvidia.com/gpu": "4"},
        "requests": {"cpu": "8", "memory": "32Gi"},
    }
    assert (container["image"], container["imagePullPolicy"]) == ("registry.example.org/detloom:1.0", "Always")
    assert pod["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-l4"}
    assert [each["key"] for each in pod["tolerations"]] == ["batch", "nvidia.com/gpu"]
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["activeDeadlineSeconds"] == 5400  # 90 minutes
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["fsGroup"] == 1000
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert mounts == {"config": "/etc/detloom", "volume-0": "/data"}
    assert volumes["volume-0"]["persistentVolumeClaim"] == {"claimName": "shared"}
    secret = {"name": "STORE_KEY", "valueFrom": {"secretKeyRef": {"name": "store", "key": "key"}}}
    assert secret in container["env"]


@pytest.mark.parametrize("kind", ["jobset", "job", "tfjob"])
def test_command_is_detloom_train_with_the_config_map(training, kind):
    asked = training(train_split="day", eval_split="night", examples="/data/$HOME")
    documents = build_manifest(asked, kind)
    container = pod_of(documents[-1])["containers"][0]
    assert container["command"] == ["python", "-m", "detloom.pipelines.cli", "train"]
    # Kubernetes replaces $$ by $.
    assert " ".join(container["args"]) == (
        "/etc/detloom/config.json --examples /data/$$HOME --train-split day --eval-split night --out /data/runs/cells"
    )
    config = documents[0]
    assert pod_of(documents[-1])["volumes"][0]["configMap"] == {"name": config["metadata"]["name"]}
    assert from_json(TrainEvalConfig, config["data"]["config.json"]) == asked.run.config


def test_other_settings_have_another_config_map(training):
    first = training().config_name
    other = training(sections={"train": {"batch_size": 8, "num_steps": 8}}).config_name
    assert first.startswith("cells-config-")
    assert first != other


def test_same_run_file_gives_the_same_bytes(training):
    for kind in ("jobset", "job", "tfjob"):
        texts = {to_yaml(build_manifest(training(), kind)) for _ in range(2)}
        assert len(texts) == 1
        assert list(yaml.safe_load_all(texts.pop())) == build_manifest(training(), kind)


def test_tpu_is_allowed_for_one_worker_only(training):
    nodes = [{"node": "Trainer", "accelerator": {"type": "tpu-v5e", "count": 8}}]
    pod = pod_of(build_manifest(training(nodes=nodes, workers=1), "jobset")[-1])
    assert pod["containers"][0]["resources"]["limits"] == {"google.com/tpu": "8"}
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "2x4"
    assert {"name": "DETLOOM_STRATEGY", "value": "tpu"} in pod["containers"][0]["env"]
    with pytest.raises(InputError, match=r"--workers: got 2 with tpu-v5e, allowed: 1;"):
        training(nodes=nodes, workers=2)


def test_strategy_is_passed_to_the_workers(training):
    strategy = {"kind": "multi_worker", "communication": "ring"}
    asked = training(sections={"trainer": {"strategy": strategy}})
    text = variables_of(pod_of(build_manifest(asked, "tfjob")[-1]), {})["DETLOOM_STRATEGY"]
    assert json.loads(text)["communication"] == "ring"
    with pytest.raises(
        InputError, match=r"strategy\.kind: got 'mirrored' with 3 workers, allowed: auto or multi_worker"
    ):
        build_manifest(training(sections={"trainer": {"strategy": {"kind": "mirrored"}}}), "job")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "Cells"}, r"--name: got 'Cells', allowed: "),
        ({"name": "c" * 41}, r"--name: got 'c+', .* 40"),
        ({"name": "cells-"}, r"--name: got 'cells-'"),
        ({"workers": 0}, r"--workers: got 0, allowed: 1 or more"),
        ({"examples": "/elsewhere"}, r"--examples: got '/elsewhere', allowed: .*kubeflow\.volumes.*\(/data\)"),
        ({"out": "/data/../x"}, r"--out: got '/data/\.\./x'"),
        ({"out": "gs://bucket/run"}, r"--out: got 'gs://bucket/run'"),
        ({"kubeflow": None}, r"kubeflow: the section is missing"),
        ({"kubeflow": {"image": "a/b:1"}}, r"--examples: .*kubeflow\.volumes"),
    ],
)
def test_invalid_settings_are_refused(training, values, message):
    with pytest.raises(InputError, match=message):
        training(**values)


@pytest.mark.parametrize(
    ("name", "expected"), [("small_cells", "small-cells"), ("2nd", "run-2nd"), ("a" * 50, "a" * 40), ("a_", "a")]
)
def test_default_name_is_valid_in_kubernetes(run_of, name, expected):
    assert default_name(run_of(name=name)) == expected
