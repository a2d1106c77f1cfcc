"""Artifacts and executions of earlier runs in one JSON file.

It replaces ML Metadata. The states of executions are MLMD's on Kubeflow (COMPLETE, FAILED, CACHED, CANCELED for skipped
tasks, RUNNING) and those of `PipelineStateEnum` on Vertex AI.
"""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(kw_only=True)
class Artifact:
    """Attributes:
    name: the backend's name.
    schema: `ArtifactTypeSchema` as JSON, which contains `title`.
    metadata: as JSON.
    key: the output key.
    """

    id: int
    name: str
    title: str
    schema: dict[str, Any]
    uri: str
    metadata: dict[str, Any]
    pipeline: str
    run: str
    task: str
    key: str
    state: str = "LIVE"


@dataclass(kw_only=True)
class Execution:
    """Attributes:
    parent: id of the DAG's execution; 0 for the root.
    num_tasks: for a DAG; 0 for a task, and for the root, which has no state.
    outputs: ids of artifacts by key.
    fingerprint: the cache key; empty for none.
    """

    id: int
    pipeline: str
    run: str
    task: str
    parent: int
    state: str
    num_tasks: int = 0
    outputs: dict[str, list[int]] = field(default_factory=dict)
    fingerprint: str = ""


class Store:
    """The content is read at the beginning and written atomically by `save`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        content = json.loads(path.read_text()) if path.exists() else {"artifacts": [], "executions": []}
        self.artifacts = [Artifact(**each) for each in content["artifacts"]]
        self.executions = [Execution(**each) for each in content["executions"]]

    def next_artifact_id(self, reserved: int = 0) -> int:
        """Return an unused artifact id; the caller can request several before adding artifacts."""
        return max((each.id for each in self.artifacts), default=0) + 1 + reserved

    def add_execution(self, **fields: Any) -> Execution:
        """Add an execution; the store assigns its id."""
        execution = Execution(id=len(self.executions) + 1, **fields)
        self.executions.append(execution)
        return execution

    def artifacts_of(self, execution: Execution, key: str) -> list[Artifact]:
        """Return the artifacts of one output, in order.

        Raises:
            KeyError: if it was never produced.
        """
        by_id = {each.id: each for each in self.artifacts}
        return [by_id[id] for id in execution.outputs[key]]

    def cached(self, fingerprint: str, pipeline: str, states: tuple[str, ...]) -> Execution | None:
        """Return the newest execution of this pipeline with a fingerprint."""
        for execution in reversed(self.executions):
            is_same = execution.fingerprint == fingerprint and execution.pipeline == pipeline
            if is_same and execution.state in states:
                return execution
        return None

    def save(self) -> None:
        content = {
            "artifacts": [asdict(each) for each in self.artifacts],
            "executions": [asdict(each) for each in self.executions],
        }
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(content, indent=1))
        os.replace(partial, self._path)
