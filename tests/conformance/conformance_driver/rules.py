"""The rules that the backends share; `Kubeflow` and `Vertex` add those that differ."""

import time
from collections.abc import Callable
from typing import Any, Literal

from conformance_driver.job import Backend
from conformance_driver.results import TaskResult, Try
from conformance_driver.retries import next_wait
from conformance_driver.run import Run, Task
from conformance_driver.store import Execution


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
