"""Estimate the size of the Argo workflow of a job once all of its tasks have run.

Argo compresses the nodes of a workflow whose JSON is larger than 1 MiB (argoproj/argo-workflows, util/file and
workflow/packer), and Kubeflow Pipelines then shows old states. The nodes contain each task's settings several times
(kubeflow/pipelines, backend/src/v2/compiler/argocompiler/{dag,container}.go, driver/driver.go, initPodSpecPatch): the
driver has the task, its component, container and Kubernetes settings as inputs, and the pod's patch as an output; the
patch is an input of the task's DAG and of its container. With the default retries of version 2.17, a Retry node and its
attempt have the same inputs and outputs, so that everything is there twice.

On a cluster, the nodes of the demo with retraining and notifications had 770 kB, 71 percent of it patches; the estimate
for the same job is 719 kB.
"""

import json
from collections.abc import Iterator
from typing import Any

from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

from conformance_driver.job import Job

LIMIT_BYTES = 1 << 20
_NODE = "x" * 700  # ids, names, times and the resources of a node
_URI = "minio://mlpipeline/v2/artifacts/cells/0f2b7a5e-4f5c-4a2e-9d5b-0d3a3c3f1c11/{}/6a1d8f0c-17d4-4c8e-8d7e-2b1e5c1f4a55/{}"
# The backend writes it into the metadata of each artifact (objectstore/config.go, SessionInfo).
_SESSION = json.dumps(
    {
        "Provider": "minio",
        "Params": {
            "accessKeyKey": "accesskey",
            "disableSSL": "true",
            "endpoint": "seaweedfs.kubeflow:9000",
            "fromEnv": "false",
            "maxRetries": "5",
            "region": "minio",
            "secretKeyKey": "secretkey",
            "secretName": "mlpipeline-minio-artifact",
        },
    },
    separators=(",", ":"),
)
_SPEC = "x" * 25_000  # templates that do not depend on the job
_ATTEMPTS = 2  # the Retry node and one attempt


def workflow_bytes(job: Job) -> int:
    """Return the size of the whole workflow as JSON."""
    nodes, spec = list(_nodes(job)), [_SPEC]
    spec += [text for name, component in job.spec.components.items() for text in _static(job, name, component)]
    spec += [_text(task) for component in _dags(job) for task in component.dag.tasks.values()]
    return len(json.dumps({"spec": spec, "nodes": nodes}, separators=(",", ":")))


def node_bytes(job: Job) -> int:
    """Return the size of the nodes in the workflow's status as JSON."""
    return len(json.dumps(list(_nodes(job)), separators=(",", ":")))


def patch_bytes(job: Job) -> int:
    """Return the part of `node_bytes` that is pod-spec-patch."""
    patches = [_patch(job, name, task) for name, task in _container_tasks(job)]
    return sum(3 * _ATTEMPTS * len(json.dumps(patch)) for patch in patches)


def _nodes(job: Job) -> Iterator[Any]:
    for name, task in _container_tasks(job):
        component = job.spec.components[task.component_ref.name]
        patch = _patch(job, name, task)
        driver = {
            "inputs": [_text(task), *_static(job, task.component_ref.name, component)],
            "outputs": [patch, "false"],
        }
        for node in (driver, {"inputs": [patch]}, {"inputs": [patch]}):
            yield from [{**node, "more": _NODE}] * _ATTEMPTS
    for component in _dags(job):
        yield from [{"inputs": [_text(task)], "more": _NODE} for task in component.dag.tasks.values()] * _ATTEMPTS


def _dags(job: Job) -> list[Any]:
    return [
        job.spec.root,
        *(each for each in job.spec.components.values() if each.WhichOneof("implementation") == "dag"),
    ]


def _container_tasks(job: Job) -> Iterator[tuple[str, Any]]:
    for component in _dags(job):
        for name, task in component.dag.tasks.items():
            if job.component(task).executor_label:
                yield name, task


def _static(job: Job, name: str, component: Any) -> list[str]:
    """Return the arguments of the workflow for a component, which a driver gets as inputs."""
    if not component.executor_label:
        return [_text(component)] if component.WhichOneof("implementation") != "dag" else []
    kubernetes = json.dumps(dict(job.platform.get(component.executor_label, {})), separators=(",", ":"))
    return [_text(component), _text(job.executors[component.executor_label].container), kubernetes]


def _patch(job: Job, name: str, task: Any) -> str:
    """Return the patch of the pod's specification that the driver makes."""
    component, container = job.component(task), job.executor(task).container
    resources = json_format.MessageToDict(container.resources)
    launcher = ["/kfp-launcher/launch", "--executor_input", _text(_executor_input(name, task, component))]
    launcher += ["--component_spec", _text(component), "x" * 700, "--"]
    main = {
        "name": "main",
        "image": container.image,
        "command": launcher,
        "args": [*container.command, *container.args],
        "env": [{"name": each.name, "value": each.value} for each in container.env],
        "resources": resources,
        "more": dict(job.platform.get(component.executor_label, {})),
    }
    return json.dumps({"containers": [main]}, separators=(",", ":"))


def _executor_input(name: str, task: Any, component: Any) -> Any:
    executor_input = pipeline_spec_pb2.ExecutorInput()
    for key, source in task.inputs.parameters.items():
        executor_input.inputs.parameter_values[key].CopyFrom(source.runtime_value.constant)
    for key in task.inputs.artifacts:
        artifact = executor_input.inputs.artifacts[key].artifacts.add(name="17", uri=_URI.format(name, key))
        artifact.metadata.update({"display_name": key, "store_session_info": _SESSION, "tfx_version": "1.16.0"})
    for key, spec in component.output_definitions.artifacts.items():
        artifact = executor_input.outputs.artifacts[key].artifacts.add(name=key, uri=_URI.format(name, key))
        artifact.type.CopyFrom(spec.artifact_type)
    executor_input.outputs.artifacts["executor-logs"].artifacts.add(name="executor-logs", uri=_URI.format(name, "log"))
    executor_input.outputs.output_file = _URI.format(name, "output_metadata.json")
    return executor_input


def _text(message: Any) -> str:
    return json.dumps(json_format.MessageToDict(message), separators=(",", ":"))
