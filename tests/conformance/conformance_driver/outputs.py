"""Outputs of a task: artifacts that are provisioned before it runs and changed by its output file.

kubeflow/pipelines, backend/src/v2/component/launcher_v2.go: `getExecutorOutputFile` parses the output file strictly and
accepts a missing one; `mergeRuntimeArtifacts` takes only address and metadata of the first artifact of each output.
Vertex AI's contract is the proto's (`ExecutorOutput`).
"""

from pathlib import Path
from typing import Any

from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

from conformance_driver.check_job import title_of
from conformance_driver.errors import TaskRefused
from conformance_driver.run import Run, Task
from conformance_driver.store import Artifact


def read_output(path: Path) -> Any:
    """Read the `ExecutorOutput` in a file.

    Raises:
        TaskRefused: if the content is invalid.
    """
    output = pipeline_spec_pb2.ExecutorOutput()
    if not path.exists():
        return output
    try:
        return json_format.Parse(path.read_text(), output)
    except (json_format.ParseError, UnicodeDecodeError) as error:
        raise TaskRefused(f"failed to unmarshall ExecutorOutput in file {path.name}: {error}") from None


def add_output(executor_input: Any, key: str, spec: Any, name: str, uri: str) -> None:
    """Provision the artifact of an output, an `ArtifactSpec`."""
    artifact = executor_input.outputs.artifacts[key].artifacts.add(name=name, uri=uri)
    artifact.type.CopyFrom(spec.artifact_type)
    if spec.HasField("metadata"):
        artifact.metadata.CopyFrom(spec.metadata)


def merge(output: Any, outputs: Any) -> None:
    """Apply a task's output file to the provisioned outputs, `ExecutorInput.Outputs`."""
    for key, found in output.artifacts.items():
        if key in outputs.artifacts and found.artifacts:
            source, target = found.artifacts[0], outputs.artifacts[key].artifacts[0]
            target.uri = source.uri or target.uri
            if source.HasField("metadata"):
                for name, value in source.metadata.fields.items():
                    target.metadata.fields[name].CopyFrom(value)


def recorded(run: Run, task: Task, key: str, artifact: Any, id: int, name: str, metadata: dict[str, Any]) -> Artifact:
    """Convert a `RuntimeArtifact` to the store's form."""
    return Artifact(
        id=id,
        name=name,
        title=title_of(artifact.type),
        schema=json_format.MessageToDict(artifact.type),
        uri=artifact.uri,
        metadata=metadata,
        pipeline=run.job.name,
        run=run.id,
        task=task.scope.path_of(task.name),
        key=key,
    )
