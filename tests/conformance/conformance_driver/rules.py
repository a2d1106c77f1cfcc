"""What differs between the backends."""

from typing import Any, Literal, Protocol

from conformance_driver.results import TaskResult
from conformance_driver.run import Run, Task
from conformance_driver.store import Artifact, Execution


class Rules(Protocol):
    """A backend."""

    def name_run(self, pipeline: str, run_id: str) -> str:
        """Its own name of a run."""

    def root_of(self, root: str, pipeline: str, run_id: str) -> str:
        """The address that a run's artifacts lie below."""

    def input_artifact(self, artifact: Artifact, is_from_dag: bool) -> Any:
        """A `RuntimeArtifact` as tasks get it.

        Args:
            is_from_dag: whether it is an input of the DAG that the task is in.
        """

    def final_status(self, run: Run, execution: Execution) -> Any:
        """What an exit handler is told, as `google.protobuf.Value`."""

    def skip(self, run: Run, task: Task) -> None:
        """Record that a condition was false."""

    def start_dag(self, run: Run, task: Task) -> Execution:
        """Record that a DAG begins."""

    def end_dag(self, run: Run, execution: Execution, state: Literal["SUCCEEDED", "FAILED"]) -> None:
        """Record that its tasks came to an end."""

    def run_task(self, run: Run, task: Task, executor_input: Any) -> TaskResult:
        """Run a task that is no DAG, and record it.

        Args:
            executor_input: `ExecutorInput` with its inputs.

        Raises:
            TaskRefused: if the backend itself fails, before there is an execution.
        """

    def runs_exit_handler(self, result: TaskResult) -> bool:
        """Whether a task that came to this end is followed by its exit handler."""
