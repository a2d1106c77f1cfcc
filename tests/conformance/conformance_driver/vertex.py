"""The documented behaviour of Vertex AI Pipelines.

addresses    ROOT/PROJECT/JOB/TASK_NUMBER/OUTPUT, and executor_output.json beside (TFX,
             tfx/orchestration/kubeflow/v2/container/kubeflow_v2_run_executor.py)
artifacts    have resource names and types, outputs too, before the task runs (TFX,
             .../container/testdata/executor_invocation.json)
drivers      lifecycle.preCacheCheck runs before the cache lookup; its result changes parameters and outputs, and its
             file still exists for the executor (kubeflow/pipelines, api/v2alpha1/pipeline_spec.proto; TFX,
             .../v2/file_based_example_gen/driver.py and kubeflow_v2_run_executor.py)
storage      buckets are mounted at /gcs (cloud.google.com/vertex-ai/docs/training/cloud-storage-file-system)
final state  kubeflow/pipelines, pipeline_spec.proto, `PipelineTaskFinalStatus`
"""

import time
import uuid
from typing import Any, Literal

from google.protobuf import json_format, struct_pb2
from kfp.pipeline_spec import pipeline_spec_pb2

from conformance_driver.errors import TaskRefused
from conformance_driver.fingerprints import vertex_fingerprint
from conformance_driver.object_store import Disk
from conformance_driver.outputs import merge, read_output, recorded
from conformance_driver.placeholders import fill
from conformance_driver.results import TaskResult, Try
from conformance_driver.retries import retry_rules
from conformance_driver.run import Run, Task
from conformance_driver.store import Artifact, Execution

_PROJECT = "123456789012"
_PLACE = f"projects/{_PROJECT}/locations/us-central1"
_FAILED_PRECONDITION = 9  # google.rpc.Code


class Vertex:
    """The rules of Vertex AI; see `Rules`."""

    def name_run(self, pipeline: str, run_id: str) -> str:
        return f"{_PLACE}/pipelineJobs/{pipeline}-{run_id[:8]}"

    def root_of(self, root: str, pipeline: str, run_id: str) -> str:
        return f"{root}/{_PROJECT}/{pipeline}-{run_id[:8]}"

    def input_artifact(self, artifact: Artifact, is_from_dag: bool) -> Any:
        del is_from_dag
        found = pipeline_spec_pb2.RuntimeArtifact(name=artifact.name, uri=artifact.uri)
        json_format.ParseDict(artifact.schema, found.type)
        found.metadata.update(artifact.metadata)
        return found

    def final_status(self, run: Run, execution: Execution) -> Any:
        status: dict[str, Any] = {
            "state": execution.state,
            "pipelineTaskName": execution.task.rpartition(".")[2],
            "pipelineJobResourceName": run.name,
        }
        failed = [each.task for each in run.store.executions if each.parent == execution.id and each.state == "FAILED"]
        if execution.state == "FAILED":
            names = ", ".join(task.rpartition(".")[2] for task in failed)
            text = f"The DAG failed because some tasks failed. The failed tasks are: [{names}]."
            status["error"] = {"code": _FAILED_PRECONDITION, "message": text}
        value = struct_pb2.Value()
        value.struct_value.update(status)
        return value

    def skip(self, run: Run, task: Task) -> None:
        _execution(run, task, "NOT_TRIGGERED")

    def start_dag(self, run: Run, task: Task) -> Execution:
        return _execution(run, task, "RUNNING")

    def end_dag(self, run: Run, execution: Execution, state: Literal["SUCCEEDED", "FAILED"]) -> None:
        execution.state = state

    def runs_exit_handler(self, result: TaskResult) -> bool:
        """The exit handler runs after any result (pipeline_spec.proto, `ALL_UPSTREAM_TASKS_COMPLETED`)."""
        return True

    def run_task(self, run: Run, task: Task, executor_input: Any) -> TaskResult:
        result = TaskResult(task.scope.path_of(task.name), "FAILED")
        execution = _execution(run, task, "RUNNING")
        try:
            _run_container(run, task, executor_input, execution, result)
        except TaskRefused as error:
            result.state, result.error = "FAILED", str(error)
        # The proto's SKIPPED means cached.
        execution.state = {"CACHED": "SKIPPED"}.get(result.state, result.state)
        result.executor_input = json_format.MessageToDict(executor_input)
        result.outputs = {key: run.store.artifacts_of(execution, key) for key in execution.outputs}
        return result


def _execution(run: Run, task: Task, state: str) -> Execution:
    execution = run.store.add_execution(
        pipeline=run.job.name,
        run=run.id,
        task=task.scope.path_of(task.name),
        parent=task.scope.execution.id,
        state=state,
    )
    task.scope.tasks[task.name] = execution
    return execution


def _run_container(run: Run, task: Task, executor_input: Any, execution: Execution, result: TaskResult) -> None:
    container = run.job.executor(task.spec).container
    ids = _provision(run, task, executor_input)
    disk = Disk(run.machine.home / "buckets")
    hook = container.lifecycle.pre_cache_check
    pod = f"{run.name.rpartition('/')[2]}-{task.name}-{execution.id}".lower()
    if hook.command:
        code = _start(run, container, [*hook.command, *hook.args], executor_input, disk, f"{pod}-driver")
        if code:
            result.tries.append(Try(code, 0, f"{pod}-driver"))
            return
        driver_output = read_output(disk.path(executor_input.outputs.output_file))
        for key, value in driver_output.parameter_values.items():
            executor_input.inputs.parameter_values[key].CopyFrom(value)
        merge(driver_output, executor_input.outputs)
    if task.spec.caching_options.enable_cache:
        fingerprint = vertex_fingerprint(container, executor_input)
        earlier = run.store.cached(fingerprint, run.job.name, ("SUCCEEDED",))
        if earlier is not None:
            execution.outputs = dict(earlier.outputs)
            result.state = "CACHED"
            return
        execution.fingerprint = fingerprint
    if _try(run, task, container, executor_input, disk, pod, result):
        merge(read_output(disk.path(executor_input.outputs.output_file)), executor_input.outputs)
        for key, id in ids.items():
            artifact = executor_input.outputs.artifacts[key].artifacts[0]
            metadata = json_format.MessageToDict(artifact.metadata)
            run.store.artifacts.append(recorded(run, task, key, artifact, id, artifact.name, metadata))
            execution.outputs[key] = [id]
        result.state = "SUCCEEDED"


def _provision(run: Run, task: Task, executor_input: Any) -> dict[str, int]:
    """Return the ids of the new artifacts, by output."""
    folder = f"{run.root}/{task.name}_{uuid.uuid4().int % 2**63}"
    ids: dict[str, int] = {}
    for key, spec in sorted(task.component.output_definitions.artifacts.items()):
        ids[key] = run.store.next_artifact_id(reserved=len(ids))
        name = f"{_PLACE}/metadataStores/default/artifacts/{ids[key]}"
        artifact = executor_input.outputs.artifacts[key].artifacts.add(name=name, uri=f"{folder}/{key}")
        artifact.type.CopyFrom(spec.artifact_type)
        if spec.HasField("metadata"):
            artifact.metadata.CopyFrom(spec.metadata)
    executor_input.outputs.output_file = f"{folder}/executor_output.json"
    return ids


def _try(run: Run, task: Task, container: Any, executor_input: Any, disk: Disk, pod: str, result: TaskResult) -> bool:
    rules = retry_rules(task.spec.retry_policy, "vertex")
    elapsed, wait = 0.0, 0.0
    while True:
        name, start = f"{pod}-{len(result.tries)}", time.monotonic()
        code = _start(run, container, [*container.command, *container.args], executor_input, disk, name)
        result.tries.append(Try(code, wait, name))
        elapsed += time.monotonic() - start
        next_wait = rules.next_wait(len(result.tries), elapsed)
        if code == 0 or next_wait is None:
            return code == 0
        wait = next_wait
        elapsed += wait


def _start(run: Run, container: Any, command: list[str], executor_input: Any, disk: Disk, pod: str) -> int:
    env = {each.name: each.value for each in container.env}
    mounts = {folder: path for folder, path in disk.mounts.items() if path == "/gcs"}
    return run.machine.runner.run(fill(command, executor_input), {**env, "HOSTNAME": pod}, mounts)
