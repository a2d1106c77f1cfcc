"""The interface of the rules that differ between the backends."""

from typing import Any, Literal, Protocol

from conformance_driver.results import TaskResult
from conformance_driver.run import Run, Task
from conformance_driver.store import Artifact, Execution


class Rules(Protocol):
    """The rules of a backend."""

    def name_run(self, pipeline: str, run_id: str) -> str:
        """Return the backend's name of a run."""

    def root_of(self, root: str, pipeline: str, run_id: str) -> str:
        """Return the address that all artifacts of a run are below."""

    def input_artifact(self, artifact: Artifact, is_from_dag: bool) -> Any:
        """Convert a `RuntimeArtifact` to the form that tasks receive.

        Args:
            is_from_dag: True if it is an input of the task's DAG.
        """

    def final_status(self, run: Run, execution: Execution) -> Any:
        """Return the final status for an exit handler, as `google.protobuf.Value`."""

    def skip(self, run: Run, task: Task) -> None:
        """Record that a condition is false."""

    def start_dag(self, run: Run, task: Task) -> Execution:
        """Record that a DAG starts."""

    def end_dag(self, run: Run, execution: Execution, state: Literal["SUCCEEDED", "FAILED"]) -> None:
        """Record that its tasks have ended."""

    def run_task(self, run: Run, task: Task, executor_input: Any) -> TaskResult:
        """Run a task that is not a DAG, and record it.

        Args:
            executor_input: `ExecutorInput` with its inputs.

        Raises:
            TaskRefused: if the backend itself fails before there is an execution.
        """

    def runs_exit_handler(self, result: TaskResult) -> bool:
        """Return whether the exit handler runs after a task with this result."""
