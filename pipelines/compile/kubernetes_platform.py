"""What open-source Kubeflow Pipelines needs to know of Kubernetes: machines, volumes, secrets, the image's loading.

The platform document goes beside the pipeline spec; each executor's entry is a `KubernetesExecutorConfig`
(kubeflow/pipelines, kubernetes_platform/proto/kubernetes_executor_config.proto), which the backend reads strictly
(backend/src/v2/compiler/argocompiler/spec_patch.go). Names of secrets and claims stand in the fields that newer
versions call deprecated and still read (backend/src/v2/driver/k8s.go): older ones refuse the new fields.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from google.protobuf.message import Message
from kfp.pipeline_spec import pipeline_spec_pb2

from detloom.schemas.accelerators import (
    ANY_GPU,
    GPU_LABEL,
    TOPOLOGY_LABEL,
    TPU_LABEL,
    TPU_RESOURCE,
    find_slice,
    is_tpu,
)
from detloom.schemas.errors import InputError
from detloom.schemas.node_config import Accelerator, NodeSettings, settings_of
from detloom.schemas.run_file import Place, RunFile
from detloom.schemas.secret_reference import SecretReference
from detloom.schemas.strategy_config import STRATEGY_VARIABLE, StrategyKind
from detloom.trainer_module.unfinished_run import TRAINING_DIR_VARIABLE

NOTIFIER_NODES = ("Notifier", "SkipNotifier", "FailureNotifier")
TRAINING_NODES = ("Trainer", "Tuner")
ResourceSpec = pipeline_spec_pb2.PipelineDeploymentConfig.PipelineContainerSpec.ResourceSpec
_MEMORY = re.compile(r"([0-9.]+)(Mi|Gi|Ti|M|G|T)")
_BYTES = {"M": 10**6, "G": 10**9, "T": 10**12, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def resources_of(node: NodeSettings, place: Place = "kubeflow") -> Message | None:
    """A `ResourceSpec` for `with_platform_config` of a TFX component; None where nothing is asked for.

    Cores and gigabytes (10**9 bytes) are limits, and Kubernetes reserves as much where nothing else is requested.
    The accelerator is left out on Vertex AI, where `vertex.training` says it.

    Args:
        node: as `settings_of` gives it.
    """
    resources = ResourceSpec()
    if node.cpu:
        resources.cpu_limit = _cores(node.cpu)
    if node.memory:
        resources.memory_limit = _gigabytes(node.memory)
    if node.accelerator is not None and place == "kubeflow":
        resources.accelerator.type = resource_name(node.accelerator)
        resources.accelerator.count = node.accelerator.count
    return resources if resources.ByteSize() else None


def build_platform(run: RunFile, executors: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The platform document.

    Args:
        executors: by node id, the labels of its executors in the pipeline spec.

    Raises:
        InputError: for settings that contradict each other.
    """
    entries: dict[str, Any] = {}
    for node_id, labels in executors.items():
        entry = _executor_entry(run, node_id)
        entries.update({label: entry for label in labels if entry})
    return {"platforms": {"kubernetes": {"deploymentSpec": {"executors": dict(sorted(entries.items()))}}}}


def environment_of(run: RunFile, node_id: str, place: Place) -> dict[str, str]:
    """Variables for the container of a node, for the pipeline spec's `env`; nothing of it is a secret.

    Raises:
        InputError: for settings that contradict each other.
    """
    if place != "kubeflow" or node_id not in TRAINING_NODES or run.kubeflow is None:
        return {}
    found: dict[str, str] = {}
    if run.kubeflow.training_dir:
        _check_training_dir(run.kubeflow.training_dir, [volume.mount_path for volume in run.kubeflow.volumes])
        found[TRAINING_DIR_VARIABLE] = run.kubeflow.training_dir
    accelerator = settings_of(run.nodes, node_id).accelerator
    kind = strategy_of(run, node_id, accelerator)
    if kind is not None:
        found[STRATEGY_VARIABLE] = kind
    return found


def strategy_of(run: RunFile, node_id: str, accelerator: Accelerator | None) -> StrategyKind | None:
    """What a single machine has to be told to train on; None where it finds that out, or the run file says it.

    Raises:
        InputError: if the run file asks for what that machine has not.
    """
    asked = run.trainer.strategy.kind
    has_tpu = accelerator is not None and is_tpu(accelerator.type)
    if asked == "multi_worker":
        raise InputError(
            f"trainer.strategy.kind: got 'multi_worker', but {node_id} is one pod on Kubeflow; allowed: the devices of "
            "one machine, or `detloom manifest` for several."
        )
    is_elsewhere = bool(run.trainer.strategy.name)  # a TPU with a name is reached over the network
    if (asked == "tpu") != has_tpu and asked != "auto" and not is_elsewhere:
        has = f"has {accelerator.count} {accelerator.type}" if accelerator else "asks for no accelerator"
        raise InputError(
            f"trainer.strategy.kind: got '{asked}', but the entry of {node_id} in nodes {has}; "
            f"give it {'a TPU, such as tpu-v5e' if asked == 'tpu' else 'a GPU'}, or write kind: auto."
        )
    return "tpu" if has_tpu and asked == "auto" else None


def resource_name(accelerator: Accelerator) -> str:
    """What Kubernetes counts."""
    return TPU_RESOURCE if is_tpu(accelerator.type) else ANY_GPU


def selector_of(node: NodeSettings, where: str) -> dict[str, str]:
    """Labels of the machines that the node may run on.

    Raises:
        InputError: if the run file gives another value to a label that the accelerator decides.
    """
    given = dict(node.node_selector or {})
    needed = {}
    if node.accelerator is not None and is_tpu(node.accelerator.type):
        tpu = find_slice(node.accelerator.type, node.accelerator.count)
        needed = {TPU_LABEL: tpu.label, TOPOLOGY_LABEL: tpu.topology}
    elif node.accelerator is not None and node.accelerator.type != ANY_GPU:
        needed = {GPU_LABEL: node.accelerator.type}
    for label, value in needed.items():
        if given.get(label, value) != value:
            raise InputError(
                f"{where}: node_selector: got {label}: {given[label]}, allowed: {value}, which its accelerator has, or "
                "nothing."
            )
    return dict(sorted({**given, **needed}.items()))


def tolerations_of(node: NodeSettings) -> list[dict[str, str]]:
    """Those of the run file, and the one that lets a pod onto machines kept for its accelerator, as GKE does itself."""
    found = [{key: value for key, value in vars(toleration).items() if value} for toleration in node.tolerations]
    if node.accelerator is not None:
        own = {"key": resource_name(node.accelerator), "operator": "Exists", "effect": "NoSchedule"}
        found += [own] if own not in found else []
    return found


def secrets_by_variable(run: RunFile, node_id: str) -> dict[str, SecretReference]:
    """Environment variables that Kubernetes fills from secrets: those of all nodes, and of those that send messages.

    Raises:
        InputError: if two secrets have one variable.
    """
    assert run.kubeflow is not None
    found = {
        each.variable: SecretReference(kind="kubernetes", name=each.secret, key=each.key)
        for each in run.kubeflow.secrets
    }
    if node_id in NOTIFIER_NODES and run.notifications is not None:
        from detloom.components.notifier.read_secret import secret_variables

        for variable, reference in secret_variables(run.notifications).items():
            if found.get(variable, reference) != reference:
                raise InputError(f"kubeflow.secrets: {variable}: is the name of a secret of notifications; rename it.")
            found[variable] = reference
    return found


def _executor_entry(run: RunFile, node_id: str) -> dict[str, Any]:
    assert run.kubeflow is not None
    node, kubeflow = settings_of(run.nodes, node_id), run.kubeflow
    secrets: dict[str, list[dict[str, str]]] = {}
    for variable, reference in sorted(secrets_by_variable(run, node_id).items()):
        secrets.setdefault(reference.name, []).append({"envVar": variable, "secretKey": reference.key})
    selector = selector_of(node, f"nodes, {node_id}")
    entry: dict[str, Any] = {
        "imagePullPolicy": kubeflow.image_pull_policy,
        "imagePullSecret": [{"secretName": name} for name in kubeflow.image_pull_secrets],
        "nodeSelector": {"labels": selector} if selector else {},
        "pvcMount": [{"constant": volume.claim, "mountPath": volume.mount_path} for volume in kubeflow.volumes],
        "secretAsEnv": [{"keyToEnv": keys, "secretName": name} for name, keys in sorted(secrets.items())],
        "tolerations": tolerations_of(node),
    }
    return {key: value for key, value in entry.items() if value}


def _cores(text: str) -> float:
    return int(text[:-1]) / 1000 if text.endswith("m") else float(text)


def _gigabytes(text: str) -> float:
    match = _MEMORY.fullmatch(text)
    assert match is not None, text  # NodeSettings has checked it
    num_bytes = float(match[1]) * _BYTES[match[2]]
    return math.ceil(num_bytes) / 10**9


def _check_training_dir(folder: str, mounts: Sequence[str]) -> None:
    path = PurePosixPath(folder)
    if not any(path.is_relative_to(mount) for mount in mounts):
        raise InputError(
            f"kubeflow.training_dir: got '{folder}', allowed: a folder on one of kubeflow.volumes "
            f"({', '.join(mounts) or 'there is none'}), since what lies elsewhere goes with the pod."
        )
