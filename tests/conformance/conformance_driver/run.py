"""What the parts of the driver share about one run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance_driver.job import Job
from conformance_driver.results import TaskResult
from conformance_driver.runner import Runner
from conformance_driver.store import Artifact, Execution, Store


@dataclass(frozen=True)
class Machine:
    """Where runs are executed. Runs with the same home see each other's artifacts.

    Attributes:
        home: holds metadata.json, buckets/ and the disks of pods while they run.
        claims: folder of each volume claim, by name.
        secrets: values of Kubernetes secrets, by name and key.
        image_env: what the image sets, for arguments that name variables.
    """

    home: Path
    runner: Runner
    claims: Mapping[str, Path] = field(default_factory=dict)
    secrets: Mapping[tuple[str, str], str] = field(default_factory=dict)
    image_env: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Run:
    """Attributes:
    id: a random one; in addresses.
    name: Kubernetes' name of the workflow, or the resource name of the pipeline job.
    root: that all artifacts of the run lie below.
    """

    job: Job
    machine: Machine
    store: Store
    id: str
    name: str
    root: str
    results: dict[str, TaskResult] = field(default_factory=dict)


@dataclass
class Scope:
    """A DAG while it runs.

    Attributes:
        path: empty for the root's.
        retry_policy: of the task that the DAG is, for tasks in it that have none.
        tasks: executions of its tasks so far, by name.
    """

    path: str
    execution: Execution
    parameters: Mapping[str, Any]
    artifacts: Mapping[str, list[Artifact]]
    retry_policy: Any = None
    tasks: dict[str, Execution] = field(default_factory=dict)

    def path_of(self, task_name: str) -> str:
        return f"{self.path}.{task_name}" if self.path else task_name


@dataclass(frozen=True)
class Task:
    """One task of a DAG, ready to run."""

    name: str
    spec: Any
    component: Any
    scope: Scope
