"""Test the platform document for open-source Kubeflow and the environment of containers."""

import pytest
from conformance_driver.pod_settings import FIELDS, check_settings

from detloom.pipelines.compile.job_settings import job_settings_of
from detloom.pipelines.compile.kubernetes_platform import build_platform, environment_of
from detloom.pipelines.dag.resources import resources_of
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.nodes import NodeSettings, settings_of

VOLUME = {"claim": "data", "mount_path": "/data"}
KUBEFLOW = {"image": "registry.example.org/detloom:1.0", "volumes": [VOLUME]}
TPU = {"node": "Trainer", "accelerator": {"type": "tpu-v5e", "count": 4}}

GPUS = {"node": "Trainer", "accelerator": {"type": "nvidia-l4", "count": 2}}


def executors(run, **labels):
    texts = dict.fromkeys(labels.values(), '{"path": "/data/cells"}')
    document = build_platform(
        job_settings_of(run, "kubeflow"), {node: f"{node}_executor" for node in labels.values()}, texts
    )
    assert list(document) == ["platforms"]
    assert list(document["platforms"]) == ["kubernetes"]
    return document["platforms"]["kubernetes"]["deploymentSpec"]["executors"]


def entry(run, node="Trainer"):
    return executors(run, node=node)[f"{node}_executor"]


def test_all_fields_exist_in_the_proto(run_of):
    run = run_of(
        kubeflow={
            **KUBEFLOW,
            "image_pull_secrets": ["registry"],
            "secrets": [{"variable": "STORE_KEY", "secret": "store", "key": "key"}],
        },
        nodes=[
            {**GPUS, "tolerations": [{"key": "team", "operator": "Equal", "value": "vision", "effect": "NoExecute"}]}
        ],
    )
    found = entry(run)
    assert set(found) == set(FIELDS)
    check_settings("Trainer", found)
    assert found["secretAsEnv"] == [
        {"keyToEnv": [{"envVar": "STORE_KEY", "secretKey": "key"}], "secretName": "store"},
    ]


def test_a_tpu_is_requested_by_label_topology_and_toleration(run_of):
    found = entry(run_of(kubeflow=KUBEFLOW, nodes=[TPU]))
    assert found["nodeSelector"]["labels"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "2x2",
    }
    assert found["tolerations"] == [{"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"}]
    resources = resources_of(settings_of(run_of(nodes=[TPU]).nodes, "Trainer"))
    assert (resources.accelerator.type, resources.accelerator.count) == ("google.com/tpu", 4)


def test_only_a_gpu_of_a_specific_model_is_requested_by_label(run_of):
    l4 = run_of(kubeflow=KUBEFLOW, nodes=[GPUS])
    assert entry(l4)["nodeSelector"]["labels"] == {"cloud.google.com/gke-accelerator": "nvidia-l4"}
    some = run_of(kubeflow=KUBEFLOW, nodes=[{"node": "Trainer", "accelerator": {"type": "nvidia.com/gpu", "count": 2}}])
    assert "nodeSelector" not in entry(some)
    for run in (l4, some):
        resources = resources_of(settings_of(run.nodes, "Trainer"))
        assert (resources.accelerator.type, resources.accelerator.count) == ("nvidia.com/gpu", 2)


def test_a_label_that_contradicts_the_accelerator_is_refused(run_of):
    labels = {"cloud.google.com/gke-tpu-topology": "4x4", "pool": "a"}
    run = run_of(kubeflow=KUBEFLOW, nodes=[{**TPU, "node_selector": labels}])
    with pytest.raises(InputError, match=r"nodes, Trainer: node_selector: got .*topology: 4x4, allowed: 2x2"):
        entry(run)


def test_containers_do_not_run_as_root(run_of):
    assert entry(run_of(kubeflow=KUBEFLOW))["securityContext"] == {"runAsNonRoot": True, "runAsUser": 1000}
    assert "securityContext" not in entry(run_of(kubeflow={**KUBEFLOW, "run_as_user": None}))
    with pytest.raises(InputError, match="run_as_user: got 0"):
        run_of(kubeflow={**KUBEFLOW, "run_as_user": 0})


@pytest.mark.parametrize(
    ("text", "is_needed"),
    [
        ("/data", True),
        ("/data/cells/{SPAN}", True),
        ('{"a": "{\\"b\\": \\"/data/x\\"}"}', True),
        ("gs://bucket/data/x", False),
        ("/database/x", False),
        ("/x/data/y", False),
        ("", False),
    ],
)
def test_a_path_in_the_settings_decides_who_gets_a_volume(run_of, text, is_needed):
    executors = build_platform(
        job_settings_of(run_of(kubeflow=KUBEFLOW), "kubeflow"), {"Pusher": "e"}, {"Pusher": text}
    )["platforms"]
    assert ("pvcMount" in executors["kubernetes"]["deploymentSpec"]["executors"]["e"]) == is_needed


def test_nodes_without_settings_get_only_image_policy_user_and_volumes(run_of):
    found = executors(run_of(kubeflow=KUBEFLOW, nodes=[TPU]), a="StatisticsGen", b="ImportSchemaGen")
    expected = {
        "imagePullPolicy": "IfNotPresent",
        "pvcMount": [{"constant": "data", "mountPath": "/data"}],
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000},
    }
    assert found == {"ImportSchemaGen_executor": expected, "StatisticsGen_executor": expected}


@pytest.mark.parametrize(
    ("cpu", "memory", "cores", "gigabytes"),
    [
        ("4", "16G", 4.0, 16.0),
        ("500m", "1500M", 0.5, 1.5),
        ("", "16Gi", 0.0, 17.179869184),  # 16 * 2**30 / 10**9
        ("2.5", "", 2.5, 0.0),
        ("1", "1Ti", 1.0, 1099.511627776),  # 2**40 / 10**9
    ],
)
def test_cores_and_memory_are_in_the_units_of_the_pipeline_spec(cpu, memory, cores, gigabytes):
    resources = resources_of(NodeSettings(node="Trainer", cpu=cpu, memory=memory))
    assert (resources.cpu_request, resources.memory_request) == (cores, gigabytes)
    assert (resources.cpu_limit, resources.memory_limit) == (0.0, gigabytes)
    on_vertex = resources_of(NodeSettings(node="Trainer", cpu=cpu, memory=memory), "vertex")
    assert (on_vertex.cpu_limit, on_vertex.memory_limit) == (cores, gigabytes)


def test_limits_are_separate_from_requests():
    resources = resources_of(NodeSettings(node="*", cpu="500m", cpu_limit="2", memory="1G", memory_limit="3G"))
    assert (resources.cpu_request, resources.cpu_limit) == (0.5, 2.0)
    assert (resources.memory_request, resources.memory_limit) == (1.0, 3.0)
    for settings in ({"cpu": "2", "cpu_limit": "500m"}, {"memory": "2G", "memory_limit": "1Gi"}):
        with pytest.raises(InputError, match=r"nodes, \*: (cpu|memory)_limit: got .*, allowed: at least"):
            resources_of(NodeSettings(node="*", **settings))


def test_disk_space_is_the_further_resource_of_a_node_without_an_accelerator(run_of):
    nodes = [{"node": "*", "ephemeral_storage": "20Gi"}, TPU]
    settings = run_of(nodes=nodes).nodes
    disk = resources_of(settings_of(settings, "StatisticsGen")).accelerator
    assert (disk.type, disk.count) == ("ephemeral-storage", 21474836480)  # 20 * 2**30
    assert resources_of(settings_of(settings, "Trainer")).accelerator.type == "google.com/tpu"
    with pytest.raises(InputError, match=r"ephemeral_storage: .*accelerator"):
        run_of(nodes=[{**TPU, "ephemeral_storage": "20Gi"}])


def test_without_requests_there_are_no_resources(run_of):
    assert resources_of(NodeSettings(node="Trainer")) is None
    assert resources_of(settings_of(run_of(nodes=[TPU]).nodes, "Trainer"), "vertex") is None


def test_the_trainer_gets_its_persistent_folder_and_the_tpu_strategy(run_of):
    run = run_of(kubeflow={**KUBEFLOW, "training_dir": "/data/unfinished"}, nodes=[TPU])
    expected = {"DETLOOM_TRAINING_DIR": "/data/unfinished", "DETLOOM_STRATEGY": "tpu"}
    job = job_settings_of(run, "kubeflow")
    assert environment_of(job, "Trainer", trains=True) == expected
    assert environment_of(job, "Tuner", trains=True) == {"DETLOOM_TRAINING_DIR": "/data/unfinished"}
    assert environment_of(job, "StatisticsGen", trains=False) == {}


def test_the_trainer_on_vertex_ai_gets_its_folder_below_the_mount_of_buckets(run_of):
    place = {"project": "my-project", "region": "us-central1", "image": "x/detloom:1", "pipeline_root": "gs://b/r"}
    settings = job_settings_of(run_of(vertex={**place, "training_dir": "gs://bucket/unfinished"}), "vertex")
    assert environment_of(settings, "Trainer", trains=True) == {"DETLOOM_TRAINING_DIR": "/gcs/bucket/unfinished"}
    assert environment_of(settings, "StatisticsGen", trains=False) == {}
    assert environment_of(job_settings_of(run_of(vertex=place), "vertex"), "Trainer", trains=True) == {}


def test_gpus_are_expected_in_the_container_and_share_memory(run_of):
    one = {"node": "DetectionEvaluator", "accelerator": {"type": "nvidia-l4", "count": 1}}
    job = job_settings_of(run_of(kubeflow=KUBEFLOW, nodes=[GPUS, one]), "kubeflow")
    nodes = ("Trainer", "DetectionEvaluator", "StatisticsGen")
    environments = [environment_of(job, node, trains=False) for node in nodes]
    assert environments == [{"DETLOOM_GPUS": "2"}, {"DETLOOM_GPUS": "1"}, {}]
    found = executors(run_of(kubeflow=KUBEFLOW, nodes=[GPUS, one]), a="Trainer", b="DetectionEvaluator")
    (mount,) = found["Trainer_executor"]["emptyDirMounts"]
    assert (mount["mountPath"], mount["medium"]) == ("/dev/shm", "Memory")
    assert "emptyDirMounts" not in found["DetectionEvaluator_executor"]


def test_nodes_with_a_gpu_and_with_a_tpu_need_two_images(run_of):
    evaluator = {"node": "DetectionEvaluator", "accelerator": {"type": "nvidia-l4", "count": 1}}
    labels = {"a": "Trainer", "b": "DetectionEvaluator"}
    with pytest.raises(InputError, match=r"detloom:1\.0 .*DetectionEvaluator GPUs, Trainer a TPU.*image"):
        executors(run_of(kubeflow=KUBEFLOW, nodes=[TPU, evaluator]), **labels)
    executors(run_of(kubeflow=KUBEFLOW, nodes=[{**TPU, "image": "x/tpu:1"}, evaluator]), **labels)


def test_a_training_folder_outside_of_volumes_is_refused(run_of):
    run = run_of(kubeflow={**KUBEFLOW, "training_dir": "/database/x"})
    with pytest.raises(InputError, match=r"training_dir: got '/database/x', allowed: .*kubeflow\.volumes \(/data\)"):
        environment_of(job_settings_of(run, "kubeflow"), "Trainer", trains=True)


@pytest.mark.parametrize(
    ("kind", "nodes", "message"),
    [
        ("multi_worker", [], r"strategy\.kind: got 'multi_worker', .*Trainer.*detloom manifest"),
        ("tpu", [], r"strategy\.kind: got 'tpu', .*Trainer in nodes"),
        ("mirrored", [TPU], r"strategy\.kind: got 'mirrored', .* 4 tpu-v5e.*GPU.*kind: auto"),
    ],
)
def test_a_strategy_that_does_not_fit_the_pod_is_refused(run_of, kind, nodes, message):
    run = run_of(kubeflow=KUBEFLOW, nodes=nodes, trainer={"strategy": {"kind": kind}})
    with pytest.raises(InputError, match=message):
        environment_of(job_settings_of(run, "kubeflow"), "Trainer", trains=True)
