"""Resolve a task's parameters and artifacts: constants, inputs of its DAG, and outputs of other tasks.

kubeflow/pipelines, backend/src/v2/driver/resolve.go: `resolveInputs` (type conversion), `resolveInputParameter`
(placeholders in constants, only as a whole string), `resolveUpstreamArtifacts`. Inputs are resolved before the
condition is evaluated (backend/src/v2/driver/container.go), so a missing output of a skipped task is an error. The
proto's comments describe the same for Vertex AI, which converts no types.
"""

from collections.abc import Callable
from typing import Any

from google.protobuf import struct_pb2
from kfp.pipeline_spec import pipeline_spec_pb2

from conformance_driver.errors import TaskRefused
from conformance_driver.placeholders import text_of
from conformance_driver.run import Run, Scope, Task
from conformance_driver.store import Artifact, Execution

_TYPES = pipeline_spec_pb2.ParameterType
_KINDS = {
    _TYPES.STRING: "string_value",
    _TYPES.NUMBER_DOUBLE: "number_value",
    _TYPES.NUMBER_INTEGER: "number_value",
    _TYPES.BOOLEAN: "bool_value",
    _TYPES.LIST: "list_value",
    _TYPES.STRUCT: "struct_value",
    _TYPES.TASK_FINAL_STATUS: "struct_value",
}


def artifacts_of(run: Run, task: Task) -> dict[str, list[Artifact]]:
    """Return artifacts by input."""
    return {key: _find(run, task.scope, source, key) for key, source in task.spec.inputs.artifacts.items()}


def parameters_of(run: Run, task: Task, final_status: Callable[[Execution], Any]) -> dict[str, Any]:
    """Return parameters by input, as `google.protobuf.Value`.

    Args:
        final_status: returns the backend's description of a finished execution.
    """
    found = {}
    declared = task.component.input_definitions.parameters
    for key, source in task.spec.inputs.parameters.items():
        value = _value(run, task, source, final_status)
        if value is not None:
            found[key] = _converted(run, key, value, declared[key].parameter_type)
    for key, spec in declared.items():
        if key not in found and spec.HasField("default_value"):
            found[key] = spec.default_value
    return found


def _find(run: Run, scope: Scope, source: Any, key: str) -> list[Artifact]:
    if source.WhichOneof("kind") == "component_input_artifact":
        outer = source.component_input_artifact
        if outer not in scope.artifacts:
            raise TaskRefused(f"input {key}: parent DAG does not have input artifact {outer}")
        return scope.artifacts[outer]
    producer = scope.tasks.get(source.task_output_artifact.producer_task)
    if producer is None:
        raise TaskRefused(f"input {key}: cannot find producer task {source.task_output_artifact.producer_task!r}")
    try:
        return run.store.artifacts_of(producer, source.task_output_artifact.output_artifact_key)
    except KeyError:
        raise TaskRefused(
            f"input {key}: {producer.task} made no {source.task_output_artifact.output_artifact_key}"
        ) from None


def _value(run: Run, task: Task, source: Any, final_status: Callable[[Execution], Any]) -> Any:
    match source.WhichOneof("kind"):
        case "runtime_value" if source.runtime_value.WhichOneof("value") == "constant":
            return _constant(run, task, source.runtime_value.constant)
        case "component_input_parameter":
            return task.scope.parameters.get(source.component_input_parameter)
        case "task_final_status":
            name = task.spec.dependent_tasks[0]
            if name not in task.scope.tasks:
                raise TaskRefused(f"producer task {name} not in tasks")
            value = struct_pb2.Value()
            value.struct_value.update(final_status(task.scope.tasks[name]))
            return value
        case kind:
            raise TaskRefused(f"parameter spec of type {kind} not implemented yet")


def _constant(run: Run, task: Task, value: Any) -> Any:
    known = {
        "{{$.pipeline_job_name}}": run.name.rpartition("/")[2],
        "{{$.pipeline_job_resource_name}}": run.name,
        "{{$.pipeline_job_uuid}}": run.id,
        "{{$.pipeline_task_name}}": task.name,
    }
    if value.string_value in known:
        return struct_pb2.Value(string_value=known[value.string_value])
    return value


def _converted(run: Run, key: str, value: Any, wanted: int) -> Any:
    kind = value.WhichOneof("kind")
    if kind == _KINDS.get(wanted):
        return value
    if wanted == _TYPES.STRING and (run.job.backend == "kubeflow" or kind == "struct_value"):
        return struct_pb2.Value(string_value=text_of(value))
    raise TaskRefused(
        f"input parameter {key!r} type mismatch: expect {_TYPES.ParameterTypeEnum.Name(wanted)}, got {kind}"
    )
