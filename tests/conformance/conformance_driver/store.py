"""What earlier runs left behind: artifacts and executions, in one JSON file.

It stands in for ML Metadata. States of executions are MLMD's on Kubeflow (COMPLETE, FAILED, CACHED, CANCELED for what a
condition skipped, RUNNING) and those of `PipelineStateEnum` on Vertex AI.
"""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(kw_only=True)
class Artifact:
    """Attributes:
    name: as the backend refers to it.
    schema: `ArtifactTypeSchema` as JSON; `title` stands in it.
    metadata: as JSON.
    key: of the output that it was made as.
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
    num_tasks: of a DAG; 0 for a task, and for the root, whose state nobody keeps.
    outputs: ids of artifacts by key.
    fingerprint: that later tasks find it by; empty for none.
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
    """Everything is read at the beginning and written, whole or not at all, by `save`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        content = json.loads(path.read_text()) if path.exists() else {"artifacts": [], "executions": []}
        self.artifacts = [Artifact(**each) for each in content["artifacts"]]
        self.executions = [Execution(**each) for each in content["executions"]]

    def next_artifact_id(self, reserved: int = 0) -> int:
        """An id that no artifact has, and none of so many that were given out and not added yet."""
        return max((each.id for each in self.artifacts), default=0) + 1 + reserved

    def add_execution(self, **fields: Any) -> Execution:
        """A new execution; its id is given by the store."""
        execution = Execution(id=len(self.executions) + 1, **fields)
        self.executions.append(execution)
        return execution

    def artifacts_of(self, execution: Execution, key: str) -> list[Artifact]:
        """One output, in order.

        Raises:
            KeyError: if it was never made.
        """
        by_id = {each.id: each for each in self.artifacts}
        return [by_id[id] for id in execution.outputs[key]]

    def cached(self, fingerprint: str, pipeline: str, states: tuple[str, ...]) -> Execution | None:
        """The newest execution of this pipeline with a fingerprint."""
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
