"""The pod of a training worker and its configuration, the same for all kinds of jobs."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from detloom.pipelines.compile.kubernetes_platform import (
    secrets_by_variable,
    selector_of,
    strategy_of,
    tolerations_of,
)
from detloom.pipelines.dag.resources import EPHEMERAL_STORAGE, check_limits, resource_name
from detloom.schemas.errors import InputError
from detloom.schemas.model.strategy import STRATEGY_VARIABLE, Strategy
from detloom.schemas.reading.typed_dict import to_canonical_json
from detloom.schemas.run_file.accelerators import is_tpu
from detloom.schemas.run_file.kubeflow import Kubeflow
from detloom.schemas.run_file.nodes import Accelerator, retry_of, settings_of
from detloom.schemas.run_file.run_file import RunFile
from detloom.trainer_module.runtime.cluster import DEFAULT_PORT

CONFIG_DIR, CONFIG_FILE = "/etc/detloom", "config.json"
MAX_NAME = 40  # Kubernetes allows 63 characters for a host name, and jobs add a suffix
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_TRAINER = "Trainer"
_SAVE_SECONDS = 120  # from SIGTERM to the end; training saves its state at the end of the current step
_VOLUME_GROUP = 1000  # the image's user is not root, so volumes of root are opened to this group if their driver can
_Plain = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training run on a cluster.

    Attributes:
        name: name of all objects in the cluster.
        examples: folder in the containers with the examples, as written by `detloom ingest`.
        out: folder in the containers that all workers share; an unfinished run in it is resumed.
        train_split, eval_split: splits of the examples; an empty eval_split selects the default.
    """

    run: RunFile
    name: str
    workers: int
    examples: str
    out: str
    train_split: str = "train"
    eval_split: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.name) > MAX_NAME:
            raise InputError(
                f"--name: got '{self.name}', allowed: at most {MAX_NAME} lower-case letters, digits and '-', beginning "
                "with a letter."
            )
        if self.workers < 1:
            raise InputError(f"--workers: got {self.workers}, allowed: 1 or more.")
        for option, folder in (("--examples", self.examples), ("--out", self.out)):
            _check_on_volume(option, folder, self.kubeflow)
        accelerator = self.accelerator
        if self.workers > 1 and accelerator is not None and is_tpu(accelerator.type):
            raise InputError(
                f"--workers: got {self.workers} with {accelerator.type}, allowed: 1; training on TPUs of several "
                "machines is not supported. Use GPUs for several machines."
            )

    @property
    def kubeflow(self) -> Kubeflow:
        if self.run.kubeflow is None:
            raise InputError("kubeflow: the section is missing; it sets image, namespace and volumes.")
        return self.run.kubeflow

    @property
    def accelerator(self) -> Accelerator | None:
        return settings_of(self.run.nodes, _TRAINER).accelerator

    @property
    def num_restarts(self) -> int:
        """Return how often training is restarted after a failure."""
        return retry_of(self.run.nodes, _TRAINER).max_retries

    @property
    def config_name(self) -> str:
        """Return the name of the ConfigMap. It changes with the configuration, so that running pods keep theirs."""
        digest = hashlib.sha256(to_canonical_json(self.run.config).encode()).hexdigest()
        return f"{self.name}-config-{digest[:8]}"


def default_name(run: RunFile) -> str:
    """Return the name of the run in a form that Kubernetes accepts."""
    name = run.name.replace("_", "-").strip("-")
    return (name if name[:1].isalpha() else f"run-{name}")[:MAX_NAME].rstrip("-")


def metadata(training: Training, name: str = "") -> _Plain:
    """Return name, namespace and labels of an object."""
    return {
        "name": name or training.name,
        "namespace": training.kubeflow.namespace,
        "labels": labels(training),
    }


def labels(training: Training) -> dict[str, str]:
    return {"app.kubernetes.io/name": "detloom", "app.kubernetes.io/instance": training.name}


def config_map(training: Training) -> _Plain:
    """Return a ConfigMap with the training configuration, without the rest of the run file."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(training, training.config_name),
        "immutable": True,
        "data": {CONFIG_FILE: to_canonical_json(training.run.config)},
    }


def pod_template(training: Training, cluster_environment: list[_Plain], *, container: str, port_name: str) -> _Plain:
    """Return labels and spec of a worker's pod.

    Args:
        cluster_environment: variables by which the workers find each other.
    """
    node, kubeflow = settings_of(training.run.nodes, _TRAINER), training.kubeflow
    check_limits(node)
    requests = {"cpu": node.cpu, "memory": node.memory, EPHEMERAL_STORAGE: node.ephemeral_storage}
    limits = {**requests, "cpu": node.cpu_limit, "memory": node.memory_limit or node.memory}
    if node.accelerator is not None:
        limits[resource_name(node.accelerator)] = str(node.accelerator.count)
    mounts = [
        {"name": f"volume-{index}", "mountPath": volume.mount_path} for index, volume in enumerate(kubeflow.volumes)
    ]
    spec: _Plain = {
        "containers": [
            _without_empty(
                {
                    "name": container,
                    "image": kubeflow.image,
                    "imagePullPolicy": kubeflow.image_pull_policy,
                    "command": ["python", "-m", "detloom.pipelines.cli", "train"],
                    "args": _arguments(training),
                    "env": [*cluster_environment, *_environment(training)],
                    "ports": [{"name": port_name, "containerPort": DEFAULT_PORT}],
                    "resources": _without_empty(
                        {"limits": _without_empty(limits), "requests": _without_empty(requests)}
                    ),
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                    "volumeMounts": [{"name": "config", "mountPath": CONFIG_DIR, "readOnly": True}, *mounts],
                }
            )
        ],
        "imagePullSecrets": [{"name": name} for name in kubeflow.image_pull_secrets],
        "nodeSelector": selector_of(node, f"nodes, {_TRAINER}"),
        "restartPolicy": "Never",
        "securityContext": {
            "runAsNonRoot": True,
            "fsGroup": _VOLUME_GROUP,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationGracePeriodSeconds": _SAVE_SECONDS,
        "tolerations": tolerations_of(node),
        "volumes": [
            {"name": "config", "configMap": {"name": training.config_name}},
            *(
                {"name": f"volume-{index}", "persistentVolumeClaim": {"claimName": volume.claim}}
                for index, volume in enumerate(kubeflow.volumes)
            ),
        ],
    }
    limit = retry_of(training.run.nodes, _TRAINER).time_limit_seconds
    if limit is not None:
        spec["activeDeadlineSeconds"] = round(limit)
    # An Istio proxy, which Kubeflow's namespaces may add, would block traffic between the workers and never end.
    pod_labels = {**labels(training), "sidecar.istio.io/inject": "false"}
    return {"metadata": {"labels": pod_labels}, "spec": _without_empty(spec)}


def _arguments(training: Training) -> list[str]:
    arguments = [f"{CONFIG_DIR}/{CONFIG_FILE}", "--examples", training.examples, "--train-split", training.train_split]
    if training.eval_split:
        arguments += ["--eval-split", training.eval_split]
    return [_literal(text) for text in (*arguments, "--out", training.out)]


def _environment(training: Training) -> list[_Plain]:
    variables = [{"name": STRATEGY_VARIABLE, "value": _literal(text)} for text in _strategies(training)]
    for variable, reference in sorted(secrets_by_variable(training.run, _TRAINER).items()):
        secret = {"name": reference.name, "key": reference.key}
        variables.append({"name": variable, "valueFrom": {"secretKeyRef": secret}})  # type: ignore[dict-item]
    return variables


def _strategies(training: Training) -> list[str]:
    """Return the strategy that the workers need as a variable; empty if one machine can choose it itself."""
    asked = training.run.trainer.strategy
    if training.workers == 1:
        kind = strategy_of(training.run, _TRAINER, training.accelerator)
        if kind is None and asked != Strategy():
            return [to_canonical_json(asked)]
        return [kind] if kind is not None else []
    if asked.kind not in ("auto", "multi_worker"):
        raise InputError(
            f"trainer.strategy.kind: got '{asked.kind}' with {training.workers} workers, allowed: auto or multi_worker."
        )
    return ["multi_worker" if asked in (Strategy(), Strategy(kind="multi_worker")) else to_canonical_json(asked)]


def _check_on_volume(option: str, folder: str, kubeflow: Kubeflow) -> None:
    path, mounts = PurePosixPath(folder), [volume.mount_path for volume in kubeflow.volumes]
    if ".." in path.parts or not any(path.is_relative_to(mount) for mount in mounts):
        raise InputError(
            f"{option}: got '{folder}', allowed: an absolute path on one of kubeflow.volumes, which all workers share "
            f"({', '.join(mounts) or 'none is set'})."
        )


def _literal(text: str) -> str:
    """Kubernetes replaces $(NAME) in arguments and variables, and $$ by $."""
    return text.replace("$", "$$")


def _without_empty(values: _Plain) -> _Plain:
    return {key: value for key, value in values.items() if value not in ("", [], {}, None)}
