"""A Kubernetes manifest that trains on several machines: an Indexed Job (batch/v1) with a service.

docs/distributed.md describes how workers find each other; `trainer_module/runtime/cluster.py` reads their
variables. If one worker is lost, TensorFlow ends the others; all are restarted and resume from the newest checkpoint.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

import yaml

from detloom.pipelines.compile.kubernetes_platform import (
    SHARED_MEMORY,
    secrets_by_variable,
    selector_of,
    tolerations_of,
)
from detloom.pipelines.dag.resources import EPHEMERAL_STORAGE, check_limits, resource_name
from detloom.schemas.errors import InputError
from detloom.schemas.model.strategy import GPUS_VARIABLE, STRATEGY_VARIABLE, Strategy
from detloom.schemas.reading.typed_dict import to_canonical_json
from detloom.schemas.run_file.accelerators import is_tpu
from detloom.schemas.run_file.kubeflow import Kubeflow
from detloom.schemas.run_file.nodes import retry_of, settings_of
from detloom.schemas.run_file.run_file import RunFile
from detloom.trainer_module.runtime.cluster import DEFAULT_PORT, NUM_WORKERS, SERVICE

_CONFIG_DIR, _CONFIG_FILE = "/etc/detloom", "config.json"
_MAX_NAME = 40  # Kubernetes allows 63 characters for a host name, and jobs add a suffix
_NAME = re.compile("[a-z]([-a-z0-9]*[a-z0-9])?")  # of a Kubernetes service
_TRAINER = "Trainer"
_SAVE_SECONDS = 120  # from SIGTERM to the end; training saves its state at the end of the current step
_VOLUME_GROUP = 1000  # the image's user is not root, so volumes of root are opened to this group if their driver can
_Plain = dict[str, Any]


def format_manifest(run: RunFile, *, workers: int, examples: str, out: str, name: str = "") -> str:
    """Return the objects as YAML, in the order in which they should be applied.

    Args:
        examples: folder in the containers with the examples, as written by `detloom ingest`.
        out: folder in the containers that all workers share; an unfinished run in it is resumed.
        name: name of all objects; by default that of the run.

    Raises:
        InputError: for settings that contradict each other, and folders that the workers do not share.
    """
    _check(run, examples, out)
    assert run.kubeflow is not None
    name = name or _default_name(run)
    if not _NAME.fullmatch(name) or len(name) > _MAX_NAME:
        allowed = f"at most {_MAX_NAME} lower-case letters, digits and '-', beginning with a letter"
        raise InputError(f"--name: got '{name}', allowed: {allowed}.")
    labels = {"app.kubernetes.io/name": "detloom", "app.kubernetes.io/instance": name}
    metadata = {"name": name, "namespace": run.kubeflow.namespace, "labels": labels}
    config = to_canonical_json(run.config)
    # The name changes with the configuration, so that running pods keep theirs.
    config_name = f"{name}-config-{hashlib.sha256(config.encode()).hexdigest()[:8]}"
    spec = _pod(run, config_name, workers, ["--examples", examples, "--out", out])
    job = {
        "completionMode": "Indexed",
        "completions": workers,
        "parallelism": workers,
        "backoffLimit": workers * retry_of(run.nodes, _TRAINER).max_retries,  # all workers fail if one is lost
        # A preempted or evicted pod is replaced without counting as a failure; that of the other workers counts.
        "podFailurePolicy": {
            "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
        },
        # An Istio proxy, which Kubeflow's namespaces may add, would block traffic between the workers and never end.
        "template": {"metadata": {"labels": {**labels, "sidecar.istio.io/inject": "false"}}, "spec": spec},
    }
    # Kubernetes sets HOSTNAME to the pod's host name, <job>-<index>, and JOB_COMPLETION_INDEX.
    spec["containers"][0]["env"].append({"name": SERVICE, "value": name})
    spec["subdomain"] = name
    service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": labels}  # for host names
    documents: list[_Plain] = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {**metadata, "name": config_name},
            "immutable": True,
            "data": {_CONFIG_FILE: config},
        },
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": job},
    ]
    without_anchors = json.loads(json.dumps(documents))  # not every reader supports them
    return str(yaml.safe_dump_all(without_anchors, sort_keys=False, width=120, explicit_start=True))


def _default_name(run: RunFile) -> str:
    name = run.name.replace("_", "-").strip("-")
    return (name if name[:1].isalpha() else f"run-{name}")[:_MAX_NAME].rstrip("-")


def _check(run: RunFile, examples: str, out: str) -> None:
    if run.kubeflow is None:
        raise InputError("kubeflow: the section is missing; it sets image, namespace and volumes.")
    mounts = [volume.mount_path for volume in run.kubeflow.volumes]
    for option, folder in (("--examples", examples), ("--out", out)):
        path = PurePosixPath(folder)
        if ".." in path.parts or not any(path.is_relative_to(mount) for mount in mounts):
            allowed = f"an absolute path on one of kubeflow.volumes ({', '.join(mounts) or 'none is set'})"
            raise InputError(f"{option}: got '{folder}', allowed: {allowed}, which all workers share.")
    accelerator, strategy = settings_of(run.nodes, _TRAINER).accelerator, run.trainer.strategy.kind
    if accelerator is not None and is_tpu(accelerator.type):
        raise InputError(f"nodes, {_TRAINER}: got {accelerator.type}, allowed with several machines: GPUs.")
    if strategy not in ("auto", "multi_worker"):
        raise InputError(f"trainer.strategy.kind: got '{strategy}', allowed with several workers: auto, multi_worker.")


def _pod(run: RunFile, config_name: str, workers: int, arguments: Sequence[str]) -> _Plain:
    kubeflow, node, limit = run.kubeflow, settings_of(run.nodes, _TRAINER), retry_of(run.nodes, _TRAINER)
    assert kubeflow is not None
    mounts: list[_Plain] = [{"name": "config", "mountPath": _CONFIG_DIR, "readOnly": True}]
    volumes: list[_Plain] = [{"name": "config", "configMap": {"name": config_name}}]
    for index, volume in enumerate(kubeflow.volumes):
        mounts.append({"name": f"volume-{index}", "mountPath": volume.mount_path})
        volumes.append({"name": f"volume-{index}", "persistentVolumeClaim": {"claimName": volume.claim}})
    check_limits(node)
    requests = {"cpu": node.cpu, "memory": node.memory, EPHEMERAL_STORAGE: node.ephemeral_storage}
    limits = {**requests, "cpu": node.cpu_limit, "memory": node.memory_limit or node.memory}
    if node.accelerator is not None:
        limits[resource_name(node.accelerator)] = str(node.accelerator.count)
    if node.num_gpus > 1:
        folder, size = SHARED_MEMORY
        mounts.append({"name": "shared-memory", "mountPath": folder})
        volumes.append({"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": size}})
    container = {
        "name": "trainer",
        "image": node.image or kubeflow.image,
        "imagePullPolicy": kubeflow.image_pull_policy,
        "command": ["python", "-m", "detloom.pipelines.cli", "train"],
        "args": [f"{_CONFIG_DIR}/{_CONFIG_FILE}", *(_literal(argument) for argument in arguments)],
        "env": _environment(run, kubeflow, workers),
        "ports": [{"name": "train", "containerPort": DEFAULT_PORT}],
        "resources": _without_empty({"limits": _without_empty(limits), "requests": _without_empty(requests)}),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": mounts,
    }
    spec = {
        "containers": [_without_empty(container)],
        "imagePullSecrets": [{"name": name} for name in kubeflow.image_pull_secrets],
        "nodeSelector": selector_of(node, f"nodes, {_TRAINER}"),
        "restartPolicy": "Never",
        "serviceAccountName": kubeflow.service_account,
        "securityContext": {
            "runAsNonRoot": True,
            "fsGroup": _VOLUME_GROUP,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationGracePeriodSeconds": _SAVE_SECONDS,
        "tolerations": tolerations_of(node),
        "volumes": volumes,
        "activeDeadlineSeconds": limit.time_limit_seconds and round(limit.time_limit_seconds),
    }
    return _without_empty(spec)


def _environment(run: RunFile, kubeflow: Kubeflow, workers: int) -> list[_Plain]:
    strategy, default = run.trainer.strategy, Strategy(kind="multi_worker")
    text = default.kind if strategy in (Strategy(), default) else to_canonical_json(strategy)
    variables: list[_Plain] = [
        {"name": NUM_WORKERS, "value": str(workers)},
        {"name": STRATEGY_VARIABLE, "value": _literal(text)},
    ]
    if num_gpus := settings_of(run.nodes, _TRAINER).num_gpus:
        variables.append({"name": GPUS_VARIABLE, "value": str(num_gpus)})
    for variable, reference in sorted(secrets_by_variable(kubeflow, None).items()):
        secret = {"name": reference.name, "key": reference.key}
        variables.append({"name": variable, "valueFrom": {"secretKeyRef": secret}})
    return variables


def _literal(text: str) -> str:
    """Kubernetes replaces $(NAME) in arguments and variables, and $$ by $."""
    return text.replace("$", "$$")


def _without_empty(values: _Plain) -> _Plain:
    return {key: value for key, value in values.items() if value not in ("", [], {}, None)}
