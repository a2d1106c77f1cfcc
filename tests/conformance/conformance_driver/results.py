"""Results of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from conformance_driver.store import Artifact

# CACHED: taken from an earlier execution. SKIPPED: its condition is false. OMITTED: a dependency did not succeed.
State = Literal["SUCCEEDED", "CACHED", "FAILED", "SKIPPED", "OMITTED"]
DONE = ("SUCCEEDED", "CACHED")


@dataclass(frozen=True)
class Try:
    """Attributes:
    waited_seconds: the wait before this try on a cluster.
    """

    exit_code: int
    waited_seconds: float
    pod: str


@dataclass
class TaskResult:
    """Attributes:
    path: names of its DAGs and its own, joined by dots.
    executor_input: JSON form, as passed to the container.
    error: an error of the backend itself.
    """

    path: str
    state: State
    tries: list[Try] = field(default_factory=list)
    executor_input: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, list[Artifact]] = field(default_factory=dict)
    error: str = ""

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


@dataclass
class RunResult:
    """Attributes:
    name: the backend's name, used in placeholders.
    tasks: by path, in the order in which they ended.
    logs: folder of the containers' logs.
    """

    id: str
    name: str
    state: Literal["SUCCEEDED", "FAILED"]
    tasks: dict[str, TaskResult]
    logs: Path

    def __getitem__(self, task_name: str) -> TaskResult:
        (found,) = [task for task in self.tasks.values() if task.name == task_name]
        return found

    def states(self) -> dict[str, State]:
        """Return a task by its own name."""
        return {task.name: task.state for task in self.tasks.values()}

    def describe_failures(self, last_characters: int = 3000) -> str:
        """Return the reasons for failed tasks, with the ends of their logs."""
        lines = []
        for task in self.tasks.values():
            if task.state == "FAILED":
                codes = [each.exit_code for each in task.tries]
                lines.append(f"{task.path}: {task.error or f'exit codes {codes}'}")
                for each in task.tries[-1:]:
                    log = self.logs / f"{each.pod}.log"
                    lines.append(log.read_text(errors="replace")[-last_characters:] if log.exists() else "(no log)")
        return "\n".join(lines)
