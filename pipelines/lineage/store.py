"""Query ML Metadata, which is opened read-only."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ml_metadata as mlmd
from ml_metadata import errors
from ml_metadata.proto import metadata_store_pb2 as pb

from detloom.components.properties import PUSHED_VERSION_PROPERTY
from detloom.pipelines.lineage.graph import safe_line
from detloom.pipelines.lineage.metadata_file import check_metadata_file
from detloom.schemas.errors import InputError

_SQLITE_MAGIC = b"SQLite format 3\0"  # https://www.sqlite.org/fileformat.html#magic_header_string


class LineageStore:
    """Artifacts and executions of one metadata file. All lists are in the order of ids, oldest first."""

    def __init__(self, metadata_file: Path) -> None:
        """Open the file.

        Raises:
            InputError: the file does not exist, is not an SQLite file, is locked, or was written by another version of
                ML Metadata.
        """
        name = safe_line(str(metadata_file))
        try:
            with metadata_file.open("rb") as file:  # ML Metadata would initialize an empty file
                is_sqlite = file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC
        except (OSError, ValueError) as error:  # ValueError: a name with a NUL character
            reason = getattr(error, "strerror", None) or error
            raise InputError(
                f"{name}: cannot be read ({reason}), needed: metadata.sqlite of the workspace in which the model was "
                "trained; give --metadata or --workspace."
            ) from None
        if not is_sqlite:
            raise InputError(f"{name}: not an SQLite database, allowed: metadata.sqlite of a workspace.")
        check_metadata_file(metadata_file, is_written=False)
        config = pb.ConnectionConfig()
        config.sqlite.filename_uri = str(metadata_file.absolute())
        config.sqlite.connection_mode = pb.SqliteMetadataSourceConfig.READONLY
        try:
            self._store = mlmd.MetadataStore(config)
        except (errors.StatusError, RuntimeError) as error:
            raise InputError(f"{name}: cannot be opened as ML Metadata ({_first_line(error)}).") from None

    def models_at(self, uri: str) -> list[pb.Artifact]:
        """Return the Model artifacts at this address."""
        return _by_id(each for each in self._store.get_artifacts_by_uri(uri) if each.type == "Model")

    def pushes_of(self, version: int) -> list[pb.Artifact]:
        """Return the PushedModel artifacts of this version."""
        return _by_id(
            each
            for each in self._store.get_artifacts_by_type("PushedModel")
            if custom_property(each, PUSHED_VERSION_PROPERTY) == str(version)
        )

    def producer(self, artifact: pb.Artifact) -> pb.Execution | None:
        """Return the execution that made the artifact, in preference to executions answered from the cache."""
        executions = self._executions(artifact, pb.Event.OUTPUT)
        made = [each for each in executions if each.last_known_state != pb.Execution.CACHED]
        return next(iter([*made, *executions]), None)

    def consumers(self, artifact: pb.Artifact, key: str) -> list[pb.Execution]:
        """Return the executions that used the artifact as the input `key`."""
        return self._executions(artifact, pb.Event.INPUT, key)

    def inputs(self, execution: pb.Execution) -> dict[str, list[pb.Artifact]]:
        """Return the input artifacts by input name."""
        return self._artifacts(execution, pb.Event.INPUT)

    def outputs(self, execution: pb.Execution) -> dict[str, list[pb.Artifact]]:
        """Return the output artifacts by output name."""
        return self._artifacts(execution, pb.Event.OUTPUT)

    def executions_of_run(self, execution: pb.Execution) -> list[pb.Execution]:
        """Return all executions of the same pipeline run, including this one."""
        runs = [each for each in self._store.get_contexts_by_execution(execution.id) if each.type == "pipeline_run"]
        return _by_id(each for run in runs[:1] for each in self._store.get_executions_by_context(run.id))

    def _executions(self, artifact: pb.Artifact, kind: int, key: str | None = None) -> list[pb.Execution]:
        events = self._store.get_events_by_artifact_ids([artifact.id])
        ids = {each.execution_id for each in events if each.type == kind and (key is None or _key_of(each) == key)}
        return _by_id(self._store.get_executions_by_id(sorted(ids))) if ids else []

    def _artifacts(self, execution: pb.Execution, kind: int) -> dict[str, list[pb.Artifact]]:
        events = self._store.get_events_by_execution_ids([execution.id])
        pairs = sorted({(_key_of(each), each.artifact_id) for each in events if each.type == kind})
        ids = sorted({artifact_id for _, artifact_id in pairs})
        artifacts = {each.id: each for each in self._store.get_artifacts_by_id(ids)} if ids else {}
        found: dict[str, list[pb.Artifact]] = {}
        for key, artifact_id in pairs:
            if artifact_id in artifacts:
                found.setdefault(key, []).append(artifacts[artifact_id])
        return found


def custom_property(thing: pb.Artifact | pb.Execution, name: str) -> Any:
    """Return a custom property as text or number; None if it does not exist or is a structure."""
    if name not in thing.custom_properties:
        return None
    value = thing.custom_properties[name]
    kind = value.WhichOneof("value")
    return getattr(value, kind) if kind in ("int_value", "double_value", "string_value", "bool_value") else None


def artifact_id(artifact: pb.Artifact) -> str:
    """Return the id of the artifact's node."""
    return f"artifact:{artifact.id}"


def node_name(execution: pb.Execution) -> str:
    """Return the class of the component, such as DetectionExampleGen."""
    return str(execution.type).rpartition(".")[2]


def _key_of(event: pb.Event) -> str:
    return str(event.path.steps[0].key) if event.path.steps else ""


def _by_id(things: Iterable[Any]) -> list[Any]:
    return sorted(things, key=lambda each: int(each.id))


def _first_line(error: Exception) -> str:
    return safe_line(next(iter(str(error).splitlines()), ""))
