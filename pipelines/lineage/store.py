"""Query ML Metadata, which is opened read-only."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ml_metadata as mlmd
from ml_metadata import errors
from ml_metadata.proto import metadata_store_pb2 as pb

from detloom.pipelines.lineage.graph import safe_line
from detloom.pipelines.lineage.metadata_file import check_metadata_file
from detloom.schemas.errors import InputError


class LineageStore:
    """Artifacts and executions of one metadata file. All lists are in the order of ids, oldest first."""

    def __init__(self, metadata_file: Path) -> None:
        """Open the file.

        Raises:
            InputError: the file does not exist, is damaged or locked, or was written by another version of ML Metadata.
        """
        name = safe_line(str(metadata_file))
        if not metadata_file.is_file() or not metadata_file.stat().st_size:  # ML Metadata would initialize it
            raise InputError(
                f"{name}: no such file, or an empty one; give the --workspace in which the model was trained."
            )
        check_metadata_file(metadata_file, is_written=False)
        self._store = open_store(metadata_file)

    def models_at(self, uri: str) -> list[pb.Artifact]:
        """Return the Model artifacts at this address."""
        return _by_id(artifact for artifact in self._store.get_artifacts_by_uri(uri) if artifact.type == "Model")

    def producer(self, artifact: pb.Artifact) -> pb.Execution | None:
        """Return the execution that made the artifact, in preference to executions answered from the cache."""
        executions = self._executions(artifact, pb.Event.OUTPUT)
        made = [each for each in executions if each.last_known_state != pb.Execution.CACHED]
        return next(iter([*made, *executions]), None)

    def consumers(self, artifact: pb.Artifact, key: str) -> list[pb.Execution]:
        """Return the executions that used the artifact as the input `key`."""
        return self._executions(artifact, pb.Event.INPUT, key)

    def inputs(self, execution: pb.Execution | None) -> dict[str, list[pb.Artifact]]:
        """Return the input artifacts by input name."""
        return self._artifacts(execution, pb.Event.INPUT)

    def outputs(self, execution: pb.Execution | None) -> dict[str, list[pb.Artifact]]:
        """Return the output artifacts by output name."""
        return self._artifacts(execution, pb.Event.OUTPUT)

    def _executions(self, artifact: pb.Artifact, kind: int, key: str | None = None) -> list[pb.Execution]:
        events = self._store.get_events_by_artifact_ids([artifact.id])
        ids = {each.execution_id for each in events if each.type == kind and (key is None or _key_of(each) == key)}
        return _by_id(self._store.get_executions_by_id(sorted(ids))) if ids else []

    def _artifacts(self, execution: pb.Execution | None, kind: int) -> dict[str, list[pb.Artifact]]:
        events = self._store.get_events_by_execution_ids([execution.id]) if execution is not None else []
        pairs = sorted({(_key_of(event), event.artifact_id) for event in events if event.type == kind})
        artifacts = self._store.get_artifacts_by_id(sorted({artifact_id for _, artifact_id in pairs})) if pairs else []
        by_id = {artifact.id: artifact for artifact in artifacts}
        by_key: dict[str, list[pb.Artifact]] = {}
        for key, artifact_id in pairs:
            if artifact_id in by_id:
                by_key.setdefault(key, []).append(by_id[artifact_id])
        return by_key


def open_store(metadata_file: Path) -> mlmd.MetadataStore:
    """Open an existing file for reading.

    Raises:
        InputError: it was written by another version of ML Metadata, or is incomplete.
    """
    config = pb.ConnectionConfig()
    config.sqlite.filename_uri = str(metadata_file.absolute())
    config.sqlite.connection_mode = pb.SqliteMetadataSourceConfig.READONLY
    try:
        return mlmd.MetadataStore(config)
    except (errors.StatusError, RuntimeError) as error:
        reason = safe_line(str(error).partition("\n")[0])
        raise InputError(f"{safe_line(str(metadata_file))}: cannot be opened as ML Metadata ({reason}).") from None


def custom_property(thing: pb.Artifact | pb.Execution | None, name: str) -> Any:
    """Return a custom property as text or number; None if it does not exist or is a structure."""
    if thing is None or name not in thing.custom_properties:
        return None
    value = thing.custom_properties[name]
    kind = value.WhichOneof("value")
    return getattr(value, kind) if kind in ("int_value", "double_value", "string_value", "bool_value") else None


def artifact_id(artifact: pb.Artifact) -> str:
    """Return the id of the artifact's node."""
    return f"artifact:{artifact.id}"


def _key_of(event: pb.Event) -> str:
    return str(event.path.steps[0].key) if event.path.steps else ""


def _by_id(things: Iterable[Any]) -> list[Any]:
    return sorted(things, key=lambda each: int(each.id))
