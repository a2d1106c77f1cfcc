"""The rules that the backends share; `Kubeflow` and `Vertex` add those that differ."""

import time
from collections.abc import Callable
from typing import Any, Literal

from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

from conformance_driver.errors import TaskRefused
from conformance_driver.job import Backend
from conformance_driver.outputs import recorded
from conformance_driver.results import TaskResult, Try
from conformance_driver.retries import next_wait
from conformance_driver.run import Run, Task
from conformance_driver.store import Execution

DONE_STATES: dict[Backend, str] = {"kubeflow": "COMPLETE", "vertex": "SUCCEEDED"}


class Rules:
    """The rules of a backend."""

    backend: Backend

    def final_status(self, run: Run, execution: Execution) -> dict[str, Any]:
        """Return the final status for an exit handler."""
        status = {"state": execution.state, "pipelineTaskName": execution.task.rpartition(".")[2]}
        return {**status, "pipelineJobResourceName": run.name}

    def start_dag(self, run: Run, task: Task) -> Execution:
        """Record that a DAG starts."""
        return self.add_execution(run, task, "RUNNING")

    def end_dag(self, run: Run, execution: Execution, state: Literal["SUCCEEDED", "FAILED"]) -> None:
        """Record that its tasks have ended."""

    def artifact_name(self, artifact_id: int) -> str:
        """Return the backend's name of an artifact."""
        return str(artifact_id)

    def run_without_container(self, run: Run, task: Task, executor_input: Any) -> TaskResult:
        """Record the artifact that an importer names, or what a resolver finds in an empty project: nothing.

        An importer copies nothing (kubeflow/pipelines, backend/src/v2/component/importer_launcher.go).

        Raises:
            TaskRefused: if an address has no scheme, on Kubeflow (the same file, `ParseProviderFromPath`).
        """
        execution, executor = self.add_execution(run, task, DONE_STATES[self.backend]), run.job.executor(task.spec)
        for key, spec in task.component.output_definitions.artifacts.items():
            execution.outputs[key] = []
            if executor.HasField("importer"):
                artifact = pipeline_spec_pb2.RuntimeArtifact(type=spec.artifact_type)
                artifact.uri = executor_input.inputs.parameter_values["artifact_uri"].string_value
                if self.backend == "kubeflow" and "://" not in artifact.uri:
                    raise TaskRefused(f"no provider scheme found in artifact URI {artifact.uri!r}")
                number, metadata = run.store.next_artifact_id(), json_format.MessageToDict(executor.importer.metadata)
                record = recorded(run, task, key, artifact, number, self.artifact_name(number), metadata)
                run.store.artifacts.append(record)
                execution.outputs[key] = [number]
        outputs = {key: run.store.artifacts_of(execution, key) for key in execution.outputs}
        return TaskResult(task.scope.path_of(task.name), "SUCCEEDED", outputs=outputs)

    def add_execution(self, run: Run, task: Task, state: str, num_tasks: int = 0) -> Execution:
        """Record an execution of a task."""
        execution = run.store.add_execution(
            pipeline=run.job.name,
            run=run.id,
            task=task.scope.path_of(task.name),
            parent=task.scope.execution.id,
            state=state,
            num_tasks=num_tasks,
        )
        task.scope.tasks[task.name] = execution
        return execution

    def run_until_success(self, task: Task, result: TaskResult, pod: str, start: Callable[[str, int], int]) -> bool:
        """Run a task's container until it succeeds or no retries are left.

        Args:
            start: runs it once, with the name of the pod and the number of the retry; returns the exit code.
        """
        policy = task.spec.retry_policy if task.spec.HasField("retry_policy") else task.scope.retry_policy
        elapsed, wait = 0.0, 0.0
        while True:
            retry = len(result.tries)
            started = time.monotonic()
            code = start(f"{pod}-{retry}", retry)
            result.tries.append(Try(code, wait, f"{pod}-{retry}"))
            elapsed += time.monotonic() - started
            next_one = next_wait(policy, self.backend, retry + 1, elapsed)
            if code == 0 or next_one is None:
                return code == 0
            wait = next_one
            elapsed += wait
