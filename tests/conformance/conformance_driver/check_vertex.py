"""Check the documented rules of Vertex AI Pipelines at submission.

kubeflow/pipelines, api/v2alpha1/pipeline_spec.proto: titles of artifact types are NAMESPACE.TITLE. TFX
(tfx/orchestration/kubeflow/v2/pipeline_builder.py) and Google's documentation (REST reference, projects.locations.
pipelineJobs): names of pipelines, labels, the root in Cloud Storage.
"""

import re
from typing import Any

from conformance_driver.check_job import title_of
from conformance_driver.errors import JobRefused
from conformance_driver.job import Job

SCHEMA_VERSIONS = ("2.0.0", "2.1.0")
_PIPELINE_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,127}")
_TASK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_TITLE = re.compile(r"[a-z][a-z0-9-_]{2,20}[.][A-Z][a-zA-Z0-9-_]{2,49}")


def check_vertex(job: Job) -> None:
    """Raise JobRefused for a job that Vertex AI would refuse."""
    if job.spec.schema_version not in SCHEMA_VERSIONS:
        allowed = ", ".join(SCHEMA_VERSIONS)
        raise JobRefused(f"schemaVersion: got {job.spec.schema_version!r}, allowed: {allowed}")
    if not _PIPELINE_NAME.fullmatch(job.name):
        raise JobRefused(f"pipelineInfo.name: got {job.name!r}, allowed: lower case letters, digits, '-', at most 128")
    if not job.root.startswith("gs://"):
        raise JobRefused(f"runtimeConfig.gcsOutputDirectory: got {job.root!r}, allowed: an address at gs://")
    for name, component in sorted(job.spec.components.items()):
        for task_name in component.dag.tasks:
            if not _TASK_NAME.fullmatch(task_name):
                raise JobRefused(f"{name}.{task_name}: allowed in names of tasks: letters, digits, '-' and '_'")
        for definitions in (component.input_definitions, component.output_definitions):
            for key, spec in sorted(definitions.artifacts.items()):
                title = title_of(spec.artifact_type)
                if not _TITLE.fullmatch(title):
                    raise JobRefused(f"{name}.{key}: got the type {title!r}, allowed: namespace.Title")
    for label, executor in sorted(job.executors.items()):
        _check_executor(label, executor)


def _check_executor(label: str, executor: Any) -> None:
    match executor.WhichOneof("spec"):
        case "container":
            if not executor.container.image:
                raise JobRefused(f"{label}: a container needs an image")
            if (
                executor.container.lifecycle.pre_cache_check.args
                and not executor.container.lifecycle.pre_cache_check.command
            ):
                raise JobRefused(f"{label}: lifecycle.preCacheCheck has no command")
        case "importer" | "resolver":
            pass
        case kind:
            raise JobRefused(f"{label}: executors of kind {kind} are not supported by this driver")
