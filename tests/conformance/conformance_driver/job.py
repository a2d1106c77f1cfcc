"""Read a compiled job as strictly as the backends do.

Open-source Kubeflow Pipelines accepts a YAML `PipelineSpec` of schema 2.1 and a second document for the platform
(kubeflow/pipelines, backend/src/apiserver/template/v2_template.go); Vertex AI accepts a JSON `PipelineJob`. Unknown
fields are refused in both. The open-source backend ignores `defaultPipelineRoot` of a YAML job: the root is set at
submission, otherwise it is the cluster's (backend/src/v2/driver/root_dag.go).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import yaml
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

from conformance_driver.errors import JobRefused

Backend = Literal["kubeflow", "vertex"]
CLUSTER_ROOT = "minio://mlpipeline/v2/artifacts"  # backend/src/v2/config/env.go


@dataclass(frozen=True)
class Job:
    """Attributes:
    spec: `PipelineSpec`.
    executors: `ExecutorSpec` by label.
    platform: Kubernetes settings by executor label; empty on Vertex AI.
    root: the address that all artifacts are below.
    parameters: values given at submission.
    """

    backend: Backend
    spec: Any
    executors: Mapping[str, Any]
    platform: Mapping[str, Mapping[str, Any]]
    root: str
    parameters: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.spec.pipeline_info.name)

    def component(self, task: Any) -> Any:
        """Return the `ComponentSpec` of a `PipelineTaskSpec`."""
        return self.spec.components[task.component_ref.name]

    def executor(self, task: Any) -> Any:
        """Return the `ExecutorSpec` of a task that is not a DAG."""
        return self.executors[self.component(task).executor_label]


def read_job(text: str, backend: Backend, root: str = "") -> Job:
    """Read a compiled file and check it as the backend does.

    Args:
        root: the root set at submission, on Kubeflow; for Vertex AI it is in the file.

    Raises:
        JobRefused: for content that the backend would refuse.
    """
    from conformance_driver.check_job import check_job

    job = _read_yaml(text, root) if backend == "kubeflow" else _read_json(text)
    check_job(job)
    if backend == "kubeflow":
        from conformance_driver.check_kubeflow import check_kubeflow

        check_kubeflow(job)
    else:
        from conformance_driver.check_vertex import check_vertex

        check_vertex(job)
    return job


def parse(document: Mapping[str, Any], message: Any, what: str) -> Any:
    """Fill a message from its JSON form; unknown fields and wrong types are refused."""
    try:
        return json_format.ParseDict(document, message)
    except json_format.ParseError as error:
        raise JobRefused(f"{what}: {error}") from None


def _read_yaml(text: str, root: str) -> Job:
    documents = list(yaml.safe_load_all(text))
    if len(documents) not in (1, 2):
        raise JobRefused(f"got {len(documents)} documents, allowed: the pipeline spec and a platform document")
    spec = parse(documents[0], pipeline_spec_pb2.PipelineSpec(), "pipeline spec")
    platform = _platform(documents[1]) if len(documents) == 2 else {}
    return Job("kubeflow", spec, _executors(spec), platform, (root or CLUSTER_ROOT).rstrip("/"), {})


def _platform(document: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    parse(document, pipeline_spec_pb2.PlatformSpec(), "platform document")
    platforms = document["platforms"]
    if platforms.keys() != {"kubernetes"}:
        raise JobRefused(f"platform document: got {sorted(platforms)}, allowed: kubernetes")
    executors: Mapping[str, Mapping[str, Any]] = platforms["kubernetes"]["deploymentSpec"]["executors"]
    return executors


def _read_json(text: str) -> Job:
    job = parse(json.loads(text), pipeline_spec_pb2.PipelineJob(), "pipeline job")
    spec = parse(json_format.MessageToDict(job.pipeline_spec), pipeline_spec_pb2.PipelineSpec(), "pipeline spec")
    config = job.runtime_config
    if config.parameters:
        raise JobRefused("runtimeConfig.parameters: is for schema 2.0, allowed with 2.1: parameterValues")
    root = config.gcs_output_directory.rstrip("/")
    return Job("vertex", spec, _executors(spec), {}, root, dict(config.parameter_values))


def _executors(spec: Any) -> Mapping[str, Any]:
    deployment = json_format.MessageToDict(spec.deployment_spec)
    return parse(deployment, pipeline_spec_pb2.PipelineDeploymentConfig(), "deployment spec").executors
