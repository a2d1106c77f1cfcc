"""The settings of a task's pod in the platform document.

Each entry is a `KubernetesExecutorConfig` (kubeflow/pipelines, kubernetes_platform/proto/
kubernetes_executor_config.proto), which the backend parses strictly
(backend/src/v2/compiler/argocompiler/spec_patch.go) and applies to the pod (backend/src/v2/driver/k8s.go). Scheduling
and image pulls are irrelevant here: those fields are only checked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from conformance_driver.errors import JobRefused

# The fields that this driver knows: a type, or the content of list entries.
FIELDS: dict[str, Any] = {
    "emptyDirMounts": [{"volumeName": str, "mountPath": str, "medium": str, "sizeLimit": str}],
    "imagePullPolicy": str,
    "imagePullSecret": [{"secretName": str}],
    "nodeSelector": {"labels": dict},
    "pvcMount": [{"constant": str, "mountPath": str}],
    "securityContext": {"runAsUser": int, "runAsGroup": int, "runAsNonRoot": bool},
    "secretAsEnv": [{"secretName": str, "keyToEnv": [{"envVar": str, "secretKey": str}]}],
    "tolerations": [{"key": str, "operator": str, "value": str, "effect": str}],
}
_PULL_POLICIES = ("Always", "Never", "IfNotPresent")


@dataclass(frozen=True)
class PodSettings:
    """Attributes:
    mounts: mount path of each volume claim.
    secrets: name and key of each secret, by environment variable.
    """

    mounts: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def check_settings(label: str, settings: Mapping[str, Any]) -> None:
    """Raise JobRefused for fields that are unknown or of another type."""
    _check(f"platform document: {label}", settings, FIELDS)
    policy = settings.get("imagePullPolicy", "Always")
    if policy not in _PULL_POLICIES:
        raise JobRefused(f"platform document: {label}: imagePullPolicy: got {policy!r}, allowed: {_PULL_POLICIES}")


def read_settings(settings: Mapping[str, Any]) -> PodSettings:
    """Parse settings that were checked."""
    mounts = {each["constant"]: each["mountPath"] for each in settings.get("pvcMount", ())}
    secrets = {
        pair["envVar"]: (each["secretName"], pair["secretKey"])
        for each in settings.get("secretAsEnv", ())
        for pair in each["keyToEnv"]
    }
    return PodSettings(mounts, secrets)


def _check(where: str, value: Any, expected: Any) -> None:
    match expected:
        case dict():
            _require(where, value, dict)
            for key, each in value.items():
                if key not in expected:
                    raise JobRefused(f"{where}: unknown field {key}, allowed: {', '.join(sorted(expected))}")
                _check(f"{where}.{key}", each, expected[key])
        case [entry]:
            _require(where, value, list)
            for index, each in enumerate(value):
                _check(f"{where}[{index}]", each, entry)
        case _:
            _require(where, value, expected)


def _require(where: str, value: Any, kind: type) -> None:
    fits = isinstance(value, Sequence) and not isinstance(value, str) if kind is list else isinstance(value, kind)
    if not fits:
        raise JobRefused(f"{where}: got {value!r}, allowed: {kind.__name__}")
