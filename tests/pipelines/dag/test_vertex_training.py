import json

import pytest
from google.cloud.aiplatform_v1.types import CustomJob, Scheduling
from tfx.utils import json_utils

from detloom.pipelines.dag import vertex_training
from detloom.pipelines.dag.vertex_training import custom_job_config
from detloom.pipelines.tfx_line import tfx_line
from detloom.schemas.errors import InputError
from detloom.trainer_module.runtime.cluster import find_cluster

VERTEX = {"project": "my-project", "region": "europe-west4", "image": "r/detloom:1", "pipeline_root": "gs://b/r"}
MACHINES = {
    "cpu": {"machine_type": "n1-standard-8"},
    "gpu": {"machine_type": "n1-standard-8", "accelerator_type": "NVIDIA_TESLA_T4", "accelerator_count": 1},
    "gpus": {"machine_type": "a2-highgpu-4g", "accelerator_type": "NVIDIA_TESLA_A100", "accelerator_count": 4},
    "workers": {
        "machine_type": "g2-standard-24",
        "accelerator_type": "NVIDIA_L4",
        "accelerator_count": 2,
        "workers": 3,
    },
    "tpu_v2": {"machine_type": "cloud-tpu", "accelerator_type": "TPU_V2", "accelerator_count": 8},
    "tpu_v3": {"machine_type": "cloud-tpu", "accelerator_type": "TPU_V3", "accelerator_count": 8, "image": "r/tpu:1"},
    "tpu_v5e": {"machine_type": "ct5lp-hightpu-4t", "tpu_topology": "2x2"},
}


@pytest.fixture(autouse=True)
def fingerprint(monkeypatch):
    monkeypatch.setattr(vertex_training, "describe_code", lambda *modules: "detloom.trainer_module=0123456789abcdef")


def custom_job(custom_config):
    """Return the job as TFX sends it: without the project, as a message of Vertex AI, which rejects unknown fields."""
    assert json_utils.loads(json_utils.dumps(custom_config)) == custom_config  # it is passed as JSON
    job = dict(custom_config["ai_platform_training_args"])
    assert job.pop("project") == "my-project"
    return CustomJob(job)


def job_of(run_of, machine, vertex=(), **sections):
    run = run_of(vertex={**VERTEX, **dict(vertex), "training": MACHINES[machine]}, **sections)
    return custom_job(custom_job_config(run, "Trainer"))


def environment_of(pool):
    return {variable.name: variable.value for variable in pool.container_spec.env}


@pytest.mark.parametrize(
    ("machine", "pools", "strategy"),
    [
        ("cpu", [("n1-standard-8", "ACCELERATOR_TYPE_UNSPECIFIED", 0, "", 1)], "one_device"),
        ("gpu", [("n1-standard-8", "NVIDIA_TESLA_T4", 1, "", 1)], "one_device"),
        ("gpus", [("a2-highgpu-4g", "NVIDIA_TESLA_A100", 4, "", 1)], "mirrored"),
        (
            "workers",  # three machines: the chief and two workers
            [("g2-standard-24", "NVIDIA_L4", 2, "", 1), ("g2-standard-24", "NVIDIA_L4", 2, "", 2)],
            "multi_worker",
        ),
        ("tpu_v2", [("cloud-tpu", "TPU_V2", 8, "", 1)], "tpu"),
        ("tpu_v3", [("cloud-tpu", "TPU_V3", 8, "", 1)], "tpu"),
        ("tpu_v5e", [("ct5lp-hightpu-4t", "ACCELERATOR_TYPE_UNSPECIFIED", 0, "2x2", 1)], "tpu"),
    ],
)
def test_each_machine_type_has_its_pools_and_strategy(run_of, machine, pools, strategy):
    job = job_of(run_of, machine)
    for pool, expected in zip(job.job_spec.worker_pool_specs, pools, strict=True):
        machine_spec = pool.machine_spec
        accelerator = (machine_spec.accelerator_type.name, machine_spec.accelerator_count, machine_spec.tpu_topology)
        assert (machine_spec.machine_type, *accelerator, pool.replica_count) == expected
        variables = {"DETLOOM_CODE": "detloom.trainer_module=0123456789abcdef", "DETLOOM_STRATEGY": strategy}
        variables["DETLOOM_TFX_LINE"] = tfx_line()
        if machine in ("gpu", "gpus", "workers"):
            variables["DETLOOM_GPUS"] = str(machine_spec.accelerator_count)
        assert environment_of(pool) == variables
    assert job.display_name == "cells-training"
    assert job.job_spec.scheduling.timeout.total_seconds() == 24 * 3600
    assert job.job_spec.scheduling.restart_job_on_worker_restart is (machine == "workers")


def test_a_tpu_can_use_its_own_image(run_of):
    images = [job_of(run_of, machine).job_spec.worker_pool_specs[0].container_spec.image_uri for machine in MACHINES]
    assert images == ["r/detloom:1"] * 5 + ["r/tpu:1", "r/detloom:1"]


def test_the_rest_of_the_section_reaches_the_job(run_of):
    vertex = {
        "service_account": "trainer@example.org",
        "network": "projects/1/global/networks/a",
        "encryption_key": "projects/p/locations/l/keyRings/r/cryptoKeys/k",
        "labels": {"team": "vision", "cost": "42"},
    }
    training = {**MACHINES["gpu"], "spot": True, "boot_disk_gb": 500, "time_limit_hours": 1.5}
    job = custom_job(custom_job_config(run_of(vertex={**VERTEX, **vertex, "training": training}), "Trainer"))
    assert job.job_spec.service_account == "trainer@example.org"
    assert job.job_spec.network == "projects/1/global/networks/a"
    assert job.encryption_spec.kms_key_name == "projects/p/locations/l/keyRings/r/cryptoKeys/k"
    assert dict(job.labels) == {"cost": "42", "team": "vision"}
    assert job.job_spec.scheduling.strategy == Scheduling.Strategy.SPOT
    assert job.job_spec.scheduling.timeout.total_seconds() == 5400
    assert job.job_spec.worker_pool_specs[0].disk_spec.boot_disk_size_gb == 500


def test_unfinished_runs_are_kept_in_the_training_dir_on_all_machines(run_of):
    job = job_of(run_of, "workers", vertex={"training_dir": "gs://bucket/unfinished"})
    found = [environment_of(pool).get("DETLOOM_TRAINING_DIR") for pool in job.job_spec.worker_pool_specs]
    assert found == ["/gcs/bucket/unfinished"] * 2


def test_without_vertex_training_nothing_is_added(run_of):
    for run in (run_of(), run_of(vertex=VERTEX)):
        assert custom_job_config(run, "Trainer") == custom_job_config(run, "Tuner") == {}


def test_the_tuner_searches_on_one_machine(run_of):
    run = run_of(vertex={**VERTEX, "training": MACHINES["workers"]})
    job = custom_job(custom_job_config(run, "Tuner"))
    (pool,) = job.job_spec.worker_pool_specs
    assert (pool.replica_count, environment_of(pool)["DETLOOM_STRATEGY"]) == (1, "mirrored")
    assert job.display_name == "cells-tuning"


def test_the_strategy_of_the_run_file_is_kept_if_it_fits(run_of):
    strategy = {"kind": "multi_worker", "communication": "nccl"}
    job = job_of(run_of, "workers", trainer={"strategy": strategy})
    found = json.loads(environment_of(job.job_spec.worker_pool_specs[1])["DETLOOM_STRATEGY"])
    assert (found["kind"], found["communication"]) == ("multi_worker", "nccl")
    tuner = custom_job(
        custom_job_config(
            run_of(vertex={**VERTEX, "training": MACHINES["workers"]}, trainer={"strategy": strategy}), "Tuner"
        )
    )
    assert environment_of(tuner.job_spec.worker_pool_specs[0])["DETLOOM_STRATEGY"] == "mirrored"
    one = job_of(run_of, "gpus", trainer={"strategy": {"kind": "one_device"}})
    assert environment_of(one.job_spec.worker_pool_specs[0])["DETLOOM_STRATEGY"] == "one_device"


@pytest.mark.parametrize(
    ("machine", "kind", "allowed"),
    [
        ("tpu_v3", "mirrored", "auto, tpu"),
        ("gpu", "tpu", "auto, one_device, mirrored"),
        ("gpu", "multi_worker", "auto, one_device, mirrored"),
        ("workers", "mirrored", "auto, multi_worker"),
    ],
)
def test_a_strategy_that_does_not_fit_the_machines_is_refused(run_of, machine, kind, allowed):
    message = rf"trainer\.strategy\.kind: got '{kind}', allowed .*: {allowed}\."
    with pytest.raises(InputError, match=message):
        job_of(run_of, machine, trainer={"strategy": {"kind": kind}})


@pytest.mark.parametrize("machine", ["gpu", "workers"])
def test_every_replica_finds_its_task_in_cluster_spec(run_of, machine):
    """Follow cloud.google.com/vertex-ai/docs/training/distributed-training#cluster-variables."""
    pools = job_of(run_of, machine).job_spec.worker_pool_specs
    hosts = {
        f"workerpool{number}": [
            f"cmle-training-workerpool{number}-2f8a-{index}:2222" for index in range(pool.replica_count)
        ]
        for number, pool in enumerate(pools)
    }
    chiefs = []
    for pool, names in hosts.items():
        for index in range(len(names)):
            spec = {"cluster": hosts, "environment": "cloud", "task": {"type": pool, "index": index}, "job": "{}"}
            cluster = find_cluster({"CLUSTER_SPEC": json.dumps(spec)})
            assert cluster.chief == ("cmle-training-workerpool0-2f8a-0:2222",)
            assert cluster.worker == tuple(hosts.get("workerpool1", ()))
            assert cluster.num_tasks == sum(pool.replica_count for pool in pools)
            assert (cluster.task_type, cluster.task_index) == ({"workerpool0": "chief"}.get(pool, "worker"), index)
            chiefs.append(cluster.is_chief)
    assert chiefs == [True] + [False] * (len(chiefs) - 1)
