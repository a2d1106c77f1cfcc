"""Machine resources of a node, in the form that TFX's compiler accepts."""

import math
import re

from google.protobuf.message import Message
from kfp.pipeline_spec import pipeline_spec_pb2

from detloom.schemas.run_file.accelerators import ANY_GPU, TPU_RESOURCE, is_tpu
from detloom.schemas.run_file.nodes import Accelerator, NodeSettings
from detloom.schemas.run_file.run_file import Place

ResourceSpec = pipeline_spec_pb2.PipelineDeploymentConfig.PipelineContainerSpec.ResourceSpec
_MEMORY = re.compile(r"([0-9.]+)(Mi|Gi|Ti|M|G|T)")
_BYTES = {"M": 10**6, "G": 10**9, "T": 10**12, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def resource_name(accelerator: Accelerator) -> str:
    """Return the name of the resource that Kubernetes counts."""
    return TPU_RESOURCE if is_tpu(accelerator.type) else ANY_GPU


def resources_of(node: NodeSettings, place: Place = "kubeflow") -> Message | None:
    """Return a `ResourceSpec` for `with_platform_config` of a TFX component; None if the node requests nothing.

    Cores and gigabytes (10**9 bytes) are limits, and Kubernetes requests as much by default. On Vertex AI the
    accelerator is left out, because `vertex.training` sets it.

    Args:
        node: the result of `settings_of`.
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


def _cores(text: str) -> float:
    return int(text[:-1]) / 1000 if text.endswith("m") else float(text)


def _gigabytes(text: str) -> float:
    match = _MEMORY.fullmatch(text)
    assert match is not None, text  # NodeSettings has checked the format
    num_bytes = float(match[1]) * _BYTES[match[2]]
    return math.ceil(num_bytes) / 10**9
