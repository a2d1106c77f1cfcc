"""Machine resources of a node, in the form that TFX's compiler accepts."""

import math
import re

from google.protobuf.message import Message
from kfp.pipeline_spec import pipeline_spec_pb2

from detloom.schemas.errors import InputError
from detloom.schemas.run_file.accelerators import ANY_GPU, TPU_RESOURCE, is_tpu
from detloom.schemas.run_file.nodes import Accelerator, NodeSettings
from detloom.schemas.run_file.run_file import Place

ResourceSpec = pipeline_spec_pb2.PipelineDeploymentConfig.PipelineContainerSpec.ResourceSpec
EPHEMERAL_STORAGE = "ephemeral-storage"
_MEMORY = re.compile(r"([0-9.]+)(Mi|Gi|Ti|M|G|T)")
_BYTES = {"M": 10**6, "G": 10**9, "T": 10**12, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def resource_name(accelerator: Accelerator) -> str:
    """Return the name of the resource that Kubernetes counts."""
    return TPU_RESOURCE if is_tpu(accelerator.type) else ANY_GPU


def resources_of(node: NodeSettings, place: Place = "kubeflow") -> Message | None:
    """Return a `ResourceSpec` for `with_platform_config` of a TFX component; None if the node requests nothing.

    On Kubeflow, cores and memory are requests, and memory is a limit as well (kubeflow/pipelines, backend/src/v2/
    driver/driver.go, initPodSpecPatch, which takes gigabytes of 10**9 bytes). That function knows one further resource,
    which it takes by its name in Kubernetes: the accelerator, or the disk. On Vertex AI, which selects a machine by the
    limits, cores and memory are limits; the accelerator is left out, because `vertex.training` sets it.

    Args:
        node: the result of `settings_of`.

    Raises:
        InputError: for a limit below the request.
    """
    resources = ResourceSpec()
    if place == "vertex":
        resources.cpu_limit, resources.memory_limit = _cores(node.cpu), _gigabytes(node.memory)
        return resources if resources.ByteSize() else None
    resources.cpu_request, resources.cpu_limit = _cores(node.cpu), _cores(node.cpu_limit)
    resources.memory_request = _gigabytes(node.memory)
    resources.memory_limit = _gigabytes(node.memory_limit or node.memory)
    check_limits(node)
    if node.accelerator is not None:
        resources.accelerator.type = resource_name(node.accelerator)
        resources.accelerator.count = node.accelerator.count
    elif node.ephemeral_storage:
        resources.accelerator.type = EPHEMERAL_STORAGE
        resources.accelerator.count = _bytes(node.ephemeral_storage)
    return resources if resources.ByteSize() else None


def check_limits(node: NodeSettings) -> None:
    """Raise InputError for a limit below the request, which Kubernetes refuses."""
    for field, read in (("cpu", _cores), ("memory", _gigabytes)):
        request, limit = getattr(node, field), getattr(node, f"{field}_limit")
        if limit and read(limit) < read(request):
            raise InputError(f"nodes, {node.node}: {field}_limit: got {limit}, allowed: at least {field} ({request}).")


def _cores(text: str) -> float:
    if not text:
        return 0.0
    return int(text[:-1]) / 1000 if text.endswith("m") else float(text)


def _gigabytes(text: str) -> float:
    return _bytes(text) / 10**9 if text else 0.0


def _bytes(text: str) -> int:
    match = _MEMORY.fullmatch(text)
    assert match is not None, text  # NodeSettings has checked the format
    return math.ceil(float(match[1]) * _BYTES[match[2]])
