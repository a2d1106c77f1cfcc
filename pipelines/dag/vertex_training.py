"""Custom jobs of Vertex AI, in which Trainer and Tuner run instead of the pipeline's node.

TFX's extension (tfx/extensions/google_cloud_ai_platform/trainer/executor.py and training_clients.py) reads the job from
the component's `custom_config`, removes `project`, sets its own command in every pool and calls `create_custom_job`.
The job is a `CustomJob` of google.cloud.aiplatform_v1. Pool 0 is the chief, pool 1 are the other workers
(cloud.google.com/vertex-ai/docs/training/distributed-training); each machine gets the cluster in CLUSTER_SPEC, which
`trainer_module/runtime/cluster.py` reads. We have never run this on Vertex AI.
"""

from typing import Any

from tfx.extensions.google_cloud_ai_platform.constants import ENABLE_VERTEX_KEY, VERTEX_REGION_KEY
from tfx.extensions.google_cloud_ai_platform.trainer.executor import TRAINING_ARGS_KEY

from detloom.components.fingerprints import describe_code
from detloom.pipelines.tfx_line import tfx_line
from detloom.schemas.errors import InputError
from detloom.schemas.model.strategy import GPUS_VARIABLE, STRATEGY_VARIABLE, Strategy, StrategyKind
from detloom.schemas.reading.typed_dict import to_canonical_json
from detloom.schemas.run_file.run_file import RunFile
from detloom.schemas.run_file.vertex import Vertex, VertexTraining, mounted_path
from detloom.trainer_module.run_state.run_folder import TRAINING_DIR_VARIABLE

CODE_VARIABLE = "DETLOOM_CODE"
LINE_VARIABLE = "DETLOOM_TFX_LINE"
_JOB_MODULES = ("detloom.pipelines.dag.vertex_training_job", "detloom.trainer_module")
_DEFAULT_BOOT_DISK_GB = 100  # the default of Vertex AI


def custom_job_config(run: RunFile, node_id: str) -> dict[str, Any]:
    """Return the additions to the `custom_config` of Trainer or Tuner; empty without `vertex.training`.

    The Tuner uses one machine.

    Raises:
        InputError: if the run file's strategy does not fit the machines.
    """
    vertex = run.vertex
    if vertex is None or vertex.training is None:
        return {}
    is_trainer = node_id == "Trainer"
    job: dict[str, Any] = {
        "project": vertex.project,
        "display_name": f"{run.name}-{'training' if is_trainer else 'tuning'}",
        "job_spec": _job_spec(run, vertex, vertex.training, vertex.training.workers if is_trainer else 1),
    }
    if vertex.labels:
        job["labels"] = dict(sorted(vertex.labels.items()))
    if vertex.encryption_key:
        job["encryption_spec"] = {"kms_key_name": vertex.encryption_key}
    return {ENABLE_VERTEX_KEY: True, VERTEX_REGION_KEY: vertex.region, TRAINING_ARGS_KEY: job}


def _job_spec(run: RunFile, vertex: Vertex, training: VertexTraining, workers: int) -> dict[str, Any]:
    scheduling: dict[str, Any] = {"timeout": {"seconds": round(3600 * training.time_limit_hours)}}
    if training.spot:
        scheduling["strategy"] = "SPOT"
    if workers > 1:  # TensorFlow ends all workers if one is lost; restarted workers resume from the checkpoint
        scheduling["restart_job_on_worker_restart"] = True
    pool = _pool(run, vertex, training, workers)
    pools = [{**pool, "replica_count": 1}]
    if workers > 1:
        pools.append({**pool, "replica_count": workers - 1})
    spec: dict[str, Any] = {"worker_pool_specs": pools, "scheduling": scheduling}
    if vertex.service_account:
        spec["service_account"] = vertex.service_account
    if vertex.network:
        spec["network"] = vertex.network
    return spec


def _pool(run: RunFile, vertex: Vertex, training: VertexTraining, workers: int) -> dict[str, Any]:
    machine: dict[str, Any] = {"machine_type": training.machine_type}
    if training.accelerator_type:
        machine["accelerator_type"] = training.accelerator_type
        machine["accelerator_count"] = training.accelerator_count
    if training.tpu_topology:
        machine["tpu_topology"] = training.tpu_topology
    strategy = _strategy(run.trainer.strategy, training, workers)
    environment = {
        CODE_VARIABLE: describe_code(*_JOB_MODULES),
        LINE_VARIABLE: tfx_line(),
        STRATEGY_VARIABLE: strategy.kind if strategy == Strategy(kind=strategy.kind) else to_canonical_json(strategy),
    }
    if vertex.training_dir:
        environment[TRAINING_DIR_VARIABLE] = mounted_path(vertex.training_dir)
    if training.accelerator_count and not training.has_tpu:
        environment[GPUS_VARIABLE] = str(training.accelerator_count)
    pool: dict[str, Any] = {
        "machine_spec": machine,
        "container_spec": {
            "image_uri": training.image or vertex.image,
            "env": [{"name": name, "value": value} for name, value in sorted(environment.items())],
        },
    }
    if training.boot_disk_gb != _DEFAULT_BOOT_DISK_GB:
        pool["disk_spec"] = {"boot_disk_size_gb": training.boot_disk_gb}
    return pool


def _strategy(asked: Strategy, training: VertexTraining, workers: int) -> Strategy:
    """Return the strategy for the job's machines.

    Raises:
        InputError: if the run file asks for a strategy that does not fit them.
    """
    allowed = _kinds(training, workers)
    if asked.kind == "auto":
        return Strategy(kind=allowed[0])
    if asked.kind not in allowed and not (workers == 1 < training.workers and asked.kind == "multi_worker"):
        raise InputError(
            f"trainer.strategy.kind: got '{asked.kind}', allowed with the machines of vertex.training: auto, "
            f"{', '.join(allowed)}."
        )
    return asked if asked.kind in allowed else Strategy(kind=allowed[0])


def _kinds(training: VertexTraining, workers: int) -> tuple[StrategyKind, ...]:
    """Return the strategy kinds that fit the machines, the best first."""
    if training.has_tpu:
        return ("tpu",)
    if workers > 1:
        return ("multi_worker",)
    return ("mirrored", "one_device") if training.accelerator_count > 1 else ("one_device", "mirrored")
