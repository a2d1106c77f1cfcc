"""Kubernetes settings for open-source Kubeflow Pipelines: machines, volumes, secrets, image pulls.

The platform document accompanies the pipeline spec; each executor has an entry `KubernetesExecutorConfig`
(kubeflow/pipelines, kubernetes_platform/proto/kubernetes_executor_config.proto), which the backend parses strictly
(backend/src/v2/compiler/argocompiler/spec_patch.go). Secrets and claims use fields that newer versions declare
deprecated but still read (backend/src/v2/driver/k8s.go), because older versions refuse the new fields. There is no
field for a read-only mount, for `fsGroup` or for the disk of a machine (see `resources_of`).
"""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from detloom.pipelines.compile.job_settings import JobSettings
from detloom.pipelines.dag.resources import resource_name
from detloom.schemas.errors import InputError
from detloom.schemas.model.strategy import GPUS_VARIABLE, STRATEGY_VARIABLE, Strategy, StrategyKind
from detloom.schemas.reading.redact import SecretReference
from detloom.schemas.run_file.accelerators import (
    ANY_GPU,
    GPU_LABEL,
    TOPOLOGY_LABEL,
    TPU_LABEL,
    TPU_LABELS,
    TPU_SLICES,
    is_tpu,
)
from detloom.schemas.run_file.kubeflow import Kubeflow, Volume
from detloom.schemas.run_file.nodes import ALL_NODES, Accelerator, NodeSettings, settings_of
from detloom.schemas.run_file.notifications import Notifications
from detloom.schemas.run_file.vertex import Vertex, mounted_path
from detloom.trainer_module.run_state.run_folder import TRAINING_DIR_VARIABLE

NOTIFIER_NODES = ("Notifier", "SkipNotifier", "FailureNotifier")
# GPUs of one machine that cannot reach each other directly exchange gradients in shared memory, about 10 MB for each
# pair and channel (github.com/NVIDIA/nccl/issues/525); containers have 64 MB by default. The backend ignores its own
# field `enabled_shared_memory`.
SHARED_MEMORY = ("/dev/shm", "1Gi")  # noqa: S108 - the folder in a container


def build_platform(job: JobSettings, executors: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the platform document.

    Args:
        executors: label of the executor in the pipeline spec, by node id.
        settings: all values that a node gets, as one text, by node id; a path in it decides which volumes it needs.

    Raises:
        InputError: for contradictory settings.
    """
    _check_images(job, executors)
    entries = {}
    for node_id, label in sorted(executors.items(), key=lambda item: item[1]):
        entries[label] = _executor_entry(job, node_id, settings.get(node_id, ""))
    return {"platforms": {"kubernetes": {"deploymentSpec": {"executors": entries}}}}


def environment_of(job: JobSettings, node_id: str, *, trains: bool) -> dict[str, str]:
    """Return environment variables for a node's container (`env` in the pipeline spec); none is a secret.

    Args:
        trains: whether the node is a Trainer or a Tuner.

    Raises:
        InputError: for contradictory settings.
    """
    node, is_vertex = settings_of(job.nodes, node_id), isinstance(job.backend, Vertex)
    found = {GPUS_VARIABLE: str(node.num_gpus)} if node.num_gpus and not is_vertex else {}
    if not trains:
        return found
    if isinstance(job.backend, Vertex):
        folder = job.backend.training_dir
        return {TRAINING_DIR_VARIABLE: mounted_path(folder)} if folder else {}
    kubeflow = job.backend
    if kubeflow.training_dir:
        _check_training_dir(kubeflow.training_dir, [volume.mount_path for volume in kubeflow.volumes])
        found[TRAINING_DIR_VARIABLE] = kubeflow.training_dir
    kind = strategy_of(job.strategy, node_id, node.accelerator)
    if kind is not None:
        found[STRATEGY_VARIABLE] = kind
    return found


def strategy_of(strategy: Strategy, node_id: str, accelerator: Accelerator | None) -> StrategyKind | None:
    """Return the strategy that a single machine must be told; None if it can detect it or `strategy` says it.

    Raises:
        InputError: if `strategy` asks for devices that the machine does not have.
    """
    asked = strategy.kind
    has_tpu = accelerator is not None and is_tpu(accelerator.type)
    if asked == "multi_worker":
        raise InputError(
            f"trainer.strategy.kind: got 'multi_worker', but {node_id} is one pod on Kubeflow; allowed: the devices of "
            "one machine, or `detloom manifest` for several."
        )
    is_remote_tpu = bool(strategy.name)  # a TPU with a name is reached over the network
    if (asked == "tpu") != has_tpu and asked != "auto" and not is_remote_tpu:
        has = f"has {accelerator.count} {accelerator.type}" if accelerator else "asks for no accelerator"
        raise InputError(
            f"trainer.strategy.kind: got '{asked}', but the entry of {node_id} in nodes {has}; "
            f"set {'a TPU, such as tpu-v5e' if asked == 'tpu' else 'a GPU'} there, or use kind: auto."
        )
    return "tpu" if has_tpu and asked == "auto" else None


def selector_of(node: NodeSettings, where: str) -> dict[str, str]:
    """Return the labels of the machines that the node may run on.

    Raises:
        InputError: if the run file contradicts a label that the accelerator determines.
    """
    given = dict(node.node_selector or {})
    needed = {}
    if node.accelerator is not None and is_tpu(node.accelerator.type):
        kind = node.accelerator.type
        needed = {TPU_LABEL: TPU_LABELS[kind], TOPOLOGY_LABEL: TPU_SLICES[kind][node.accelerator.count]}
    elif node.accelerator is not None and node.accelerator.type != ANY_GPU:
        needed = {GPU_LABEL: node.accelerator.type}
    for label, value in needed.items():
        if given.get(label, value) != value:
            raise InputError(
                f"{where}: node_selector: got {label}: {given[label]}, allowed: {value} for its accelerator, or no "
                "label."
            )
    return dict(sorted({**given, **needed}.items()))


def tolerations_of(node: NodeSettings) -> list[dict[str, str]]:
    """Return the run file's tolerations, and one for machines reserved for the accelerator, as GKE adds it."""
    found = [{key: value for key, value in vars(toleration).items() if value} for toleration in node.tolerations]
    if node.accelerator is not None:
        own = {"key": resource_name(node.accelerator), "operator": "Exists", "effect": "NoSchedule"}
        found += [own] if own not in found else []
    return found


def secrets_by_variable(kubeflow: Kubeflow, notifications: Notifications | None) -> dict[str, SecretReference]:
    """Return environment variables that Kubernetes fills from secrets: those of all nodes and of the notifications.

    Raises:
        InputError: if two secrets use the same variable.
    """
    found = {
        each.variable: SecretReference(kind="kubernetes", name=each.secret, key=each.key) for each in kubeflow.secrets
    }
    if notifications is not None:
        from detloom.components.notifier.read_secret import secret_variables

        for variable, reference in secret_variables(notifications).items():
            if found.get(variable, reference) != reference:
                raise InputError(
                    f"kubeflow.secrets: {variable}: a secret of notifications uses this name; choose another one."
                )
            found[variable] = reference
    return found


def _executor_entry(job: JobSettings, node_id: str, settings: str) -> dict[str, Any]:
    node, kubeflow = settings_of(job.nodes, node_id), job.backend
    assert isinstance(kubeflow, Kubeflow)
    notifications = job.notifications if node_id in NOTIFIER_NODES else None
    secrets: dict[str, list[dict[str, str]]] = {}
    user = kubeflow.run_as_user
    for variable, reference in sorted(secrets_by_variable(kubeflow, notifications).items()):
        secrets.setdefault(reference.name, []).append({"envVar": variable, "secretKey": reference.key})
    selector = selector_of(node, f"nodes, {node_id}")
    folder, size = SHARED_MEMORY
    shared_memory = {"volumeName": "shared-memory", "mountPath": folder, "medium": "Memory", "sizeLimit": size}
    entry: dict[str, Any] = {
        "emptyDirMounts": [shared_memory] if node.num_gpus > 1 else [],
        "imagePullPolicy": kubeflow.image_pull_policy,
        "imagePullSecret": [{"secretName": name} for name in kubeflow.image_pull_secrets],
        "nodeSelector": {"labels": selector} if selector else {},
        "pvcMount": [
            {"constant": volume.claim, "mountPath": volume.mount_path}
            for volume in kubeflow.volumes
            if _needs(volume, node_id, settings)
        ],
        "secretAsEnv": [{"keyToEnv": keys, "secretName": name} for name, keys in sorted(secrets.items())],
        # The backend itself drops all capabilities and forbids privilege escalation (argocompiler/security_context.go).
        "securityContext": {} if user is None else {"runAsNonRoot": True, "runAsUser": user},
        "tolerations": tolerations_of(node),
    }
    return {key: value for key, value in entry.items() if value}


def _check_images(job: JobSettings, node_ids: Collection[str]) -> None:
    """Raise InputError for nodes with a GPU and with a TPU in one image: TensorFlow has a build of its own for TPUs."""
    users: dict[str, dict[str, str]] = {}
    for node_id in node_ids:
        node = settings_of(job.nodes, node_id)
        if node.accelerator is not None:
            kind = "GPUs" if node.num_gpus else "a TPU"
            users.setdefault(node.image or job.backend.image, {})[kind] = node_id
    for image, by_kind in users.items():
        if len(by_kind) > 1:
            uses = ", ".join(f"{node_id} {kind}" for kind, node_id in sorted(by_kind.items()))
            raise InputError(
                f"nodes: {image} is built for GPUs or for TPUs, but {uses} use it; set the image of one of these nodes."
            )


def _needs(volume: Volume, node_id: str, settings: str) -> bool:
    """Return whether a node gets a volume. The backend cannot mount it read-only, so others do not get it."""
    if set(volume.nodes) & {ALL_NODES, node_id}:
        return True
    return re.search(rf"(?<![\w./-]){re.escape(volume.mount_path.rstrip('/'))}(?![\w.-])", settings) is not None


def _check_training_dir(folder: str, mounts: Sequence[str]) -> None:
    path = PurePosixPath(folder)
    if not any(path.is_relative_to(mount) for mount in mounts):
        raise InputError(
            f"kubeflow.training_dir: got '{folder}', allowed: a folder on one of kubeflow.volumes "
            f"({', '.join(mounts) or 'none'}), because other folders are deleted with the pod."
        )
