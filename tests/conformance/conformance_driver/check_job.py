"""Check the rules that hold for jobs of any backend: references exist, and inputs and outputs fit.

A component's inputs must be given unless they are optional (kubeflow/pipelines, api/v2alpha1/pipeline_spec.proto,
`ComponentInputsSpec`); others are not allowed.
"""

from collections.abc import Mapping
from typing import Any

import yaml

from conformance_driver.errors import JobRefused
from conformance_driver.job import Job

ANY_TITLE = "system.Artifact"


def check_job(job: Job) -> None:
    """Raise JobRefused for a job that no backend would accept; running it finds missing components and cycles."""
    dags = {"root": job.spec.root, **{name: each for name, each in job.spec.components.items() if each.dag.tasks}}
    for name, component in sorted(dags.items()):
        for task_name, task in sorted(component.dag.tasks.items()):
            _check_inputs(job, f"{name}.{task_name}", component, task, component.dag.tasks)


def title_of(schema: Any) -> str:
    """Return the title of an `ArtifactTypeSchema`, or an empty text."""
    if schema.WhichOneof("kind") == "instance_schema":
        return str((yaml.safe_load(schema.instance_schema) or {}).get("title", ""))
    return str(schema.schema_title)


def _check_inputs(job: Job, where: str, parent: Any, task: Any, tasks: Mapping[str, Any]) -> None:
    declared = job.component(task).input_definitions
    for kind in ("artifacts", "parameters"):
        specs, given = getattr(declared, kind), getattr(task.inputs, kind)
        unknown = set(given) - set(specs)
        if unknown:
            raise JobRefused(f"{where}: {kind} {', '.join(sorted(unknown))} are given and not declared")
        needed = {key for key, spec in specs.items() if not _may_be_absent(spec)}
        if needed - set(given):
            raise JobRefused(f"{where}: {kind} {', '.join(sorted(needed - set(given)))} are declared and not given")
    for key, source in sorted(task.inputs.artifacts.items()):
        made = _source_type(job, f"{where}.{key}", parent, source, tasks)
        wanted = title_of(declared.artifacts[key].artifact_type)
        if wanted not in (made, ANY_TITLE):
            raise JobRefused(f"{where}.{key}: gets a {made}, declared: {wanted}")


def _source_type(job: Job, where: str, parent: Any, source: Any, tasks: Mapping[str, Any]) -> str:
    if source.WhichOneof("kind") == "component_input_artifact":
        outer = source.component_input_artifact
        if outer not in parent.input_definitions.artifacts:
            raise JobRefused(f"{where}: its DAG has no input {outer}")
        return title_of(parent.input_definitions.artifacts[outer].artifact_type)
    producer, key = source.task_output_artifact.producer_task, source.task_output_artifact.output_artifact_key
    outputs = job.component(tasks[producer]).output_definitions.artifacts
    if key not in outputs:
        raise JobRefused(f"{where}: {producer} has no output {key}")
    return title_of(outputs[key].artifact_type)


def _may_be_absent(spec: Any) -> bool:
    return bool(spec.is_optional) or (hasattr(spec, "default_value") and spec.HasField("default_value"))
