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

import uuid
from typing import Any, Literal

from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

from conformance_driver.errors import TaskRefused
from conformance_driver.fingerprints import fingerprint_of
from conformance_driver.object_store import Disk
from conformance_driver.outputs import add_output, merge, read_output, recorded
from conformance_driver.placeholders import fill
from conformance_driver.results import TaskResult, Try
from conformance_driver.rules import Rules
from conformance_driver.run import Run, Task
from conformance_driver.store import Artifact, Execution

_PROJECT = "123456789012"
_PLACE = f"projects/{_PROJECT}/locations/us-central1"
_FAILED_PRECONDITION = 9  # google.rpc.Code


class Vertex(Rules):
    """The rules of Vertex AI."""

    backend = "vertex"

    def name_run(self, pipeline: str, run_id: str) -> str:
        return f"{_PLACE}/pipelineJobs/{pipeline}-{run_id[:8]}"

    def root_of(self, root: str, pipeline: str, run_id: str) -> str:
        return f"{root}/{_PROJECT}/{pipeline}-{run_id[:8]}"

    def artifact_name(self, artifact_id: int) -> str:
        return _artifact_name(artifact_id)

    def input_artifact(self, artifact: Artifact, is_from_dag: bool) -> Any:
        del is_from_dag
        found = pipeline_spec_pb2.RuntimeArtifact(name=artifact.name, uri=artifact.uri)
        json_format.ParseDict(artifact.schema, found.type)
        found.metadata.update(artifact.metadata)
        return found

    def final_status(self, run: Run, execution: Execution) -> dict[str, Any]:
        status = super().final_status(run, execution)
        failed = [each.task for each in run.store.executions if each.parent == execution.id and each.state == "FAILED"]
        if execution.state == "FAILED":
            names = ", ".join(task.rpartition(".")[2] for task in failed)
            text = f"The DAG failed because some tasks failed. The failed tasks are: [{names}]."
            status["error"] = {"code": _FAILED_PRECONDITION, "message": text}
        return status

    def skip(self, run: Run, task: Task) -> None:
        self.add_execution(run, task, "NOT_TRIGGERED")

    def end_dag(self, run: Run, execution: Execution, state: Literal["SUCCEEDED", "FAILED"]) -> None:
        execution.state = state

    def runs_exit_handler(self, result: TaskResult) -> bool:
        """The exit handler runs after any result (pipeline_spec.proto, `ALL_UPSTREAM_TASKS_COMPLETED`)."""
        return True

    def run_task(self, run: Run, task: Task, executor_input: Any) -> TaskResult:
        result = TaskResult(task.scope.path_of(task.name), "FAILED")
        execution = self.add_execution(run, task, "RUNNING")
        try:
            self._run_container(run, task, executor_input, execution, result)
        except TaskRefused as error:
            result.state, result.error = "FAILED", str(error)
        # The proto's SKIPPED means cached.
        execution.state = {"CACHED": "SKIPPED"}.get(result.state, result.state)
        result.executor_input = json_format.MessageToDict(executor_input)
        result.outputs = {key: run.store.artifacts_of(execution, key) for key in execution.outputs}
        return result

    def _run_container(
        self, run: Run, task: Task, executor_input: Any, execution: Execution, result: TaskResult
    ) -> None:
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
            environment = {each.name: each.value for each in container.env}
            fingerprint = fingerprint_of(container, executor_input, environment)
            earlier = run.store.cached(fingerprint, run.job.name, ("SUCCEEDED",))
            if earlier is not None:
                execution.outputs = dict(earlier.outputs)
                result.state = "CACHED"
                return
            execution.fingerprint = fingerprint
        command = [*container.command, *container.args]

        def start(pod: str, retry: int) -> int:
            del retry
            return _start(run, container, command, executor_input, disk, pod)

        if self.run_until_success(task, result, pod, start):
            merge(read_output(disk.path(executor_input.outputs.output_file)), executor_input.outputs)
            for key, id in ids.items():
                artifact = executor_input.outputs.artifacts[key].artifacts[0]
                metadata = json_format.MessageToDict(artifact.metadata)
                run.store.artifacts.append(recorded(run, task, key, artifact, id, artifact.name, metadata))
                execution.outputs[key] = [id]
            result.state = "SUCCEEDED"


def _artifact_name(artifact_id: int) -> str:
    return f"{_PLACE}/metadataStores/default/artifacts/{artifact_id}"


def _provision(run: Run, task: Task, executor_input: Any) -> dict[str, int]:
    """Return the ids of the new artifacts, by output."""
    folder = f"{run.root}/{task.name}_{uuid.uuid4().int % 2**63}"
    ids: dict[str, int] = {}
    for key, spec in sorted(task.component.output_definitions.artifacts.items()):
        ids[key] = run.store.next_artifact_id(reserved=len(ids))
        add_output(executor_input, key, spec, _artifact_name(ids[key]), f"{folder}/{key}")
    executor_input.outputs.output_file = f"{folder}/executor_output.json"
    return ids


def _start(run: Run, container: Any, command: list[str], executor_input: Any, disk: Disk, pod: str) -> int:
    env = {each.name: each.value for each in container.env}
    mounts = {folder: path for folder, path in disk.mounts.items() if path == "/gcs"}
    return run.machine.runner.run(fill(command, executor_input), {**env, "HOSTNAME": pod}, mounts)
