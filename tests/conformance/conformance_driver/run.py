"""Data about one run that the parts of the driver share."""

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
    """The place where runs are executed. Runs with the same home see each other's artifacts.

    Attributes:
        home: contains metadata.json, buckets/, and the disks of pods during a run.
        claims: folder of each volume claim, by name.
        secrets: values of Kubernetes secrets, by name and key.
    """

    home: Path
    runner: Runner
    claims: Mapping[str, Path] = field(default_factory=dict)
    secrets: Mapping[tuple[str, str], str] = field(default_factory=dict)


@dataclass
class Run:
    """Attributes:
    id: a random id, used in addresses.
    name: the name of the Kubernetes workflow, or the resource name of the pipeline job.
    root: the address that all artifacts of the run are below.
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
    """A running DAG.

    Attributes:
        path: empty for the root.
        retry_policy: policy of the DAG's task, for its tasks without a policy.
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
    """A task of a DAG that is ready to run."""

    name: str
    spec: Any
    component: Any
    scope: Scope
