"""Observe the nodes of a local run and record the code that they ran; TFX's local runner has no hooks for either."""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ml_metadata.proto import metadata_store_pb2 as pb
from tfx.dsl.components.base.base_node import BaseNode
from tfx.orchestration.portable import launcher
from tfx.orchestration.portable.data_types import ExecutionInfo

from detloom.components.fingerprints import digests_of
from detloom.pipelines.local.console import NodeEnd
from detloom.schemas.reading.text_file import write_text_file
from detloom.schemas.reading.tree_diff import leaves

_ENDS: dict[int, NodeEnd] = {pb.Execution.CACHED: "cached", pb.Execution.FAILED: "failed"}


@contextlib.contextmanager
def observe_nodes(on_begin: Callable[[str], None], on_end: Callable[[str, NodeEnd], None]) -> Iterator[None]:
    """Call these functions in this block when a node begins, and when it has ended unless it raised an error."""

    class ObservedLauncher(launcher.Launcher):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self._observed, self._metadata = settings["pipeline_node"].node_info.id, settings["mlmd_connection"]

        def launch(self) -> ExecutionInfo | None:
            on_begin(self._observed)
            execution = super().launch()
            on_end(self._observed, self._find_end(execution))
            return execution

        def _find_end(self, execution: ExecutionInfo | None) -> NodeEnd:
            """Return the state in ML Metadata; a node that a condition skips has no execution there."""
            if execution is None or execution.execution_id is None:
                return "skipped"
            with self._metadata as metadata:
                (found,) = metadata.store.get_executions_by_id([execution.execution_id])
            return _ENDS.get(found.last_known_state, "done")

    with launch_with(ObservedLauncher):
        yield


@contextlib.contextmanager
def launch_with(cls: type[launcher.Launcher]) -> Iterator[None]:
    """Let TFX's local runner launch nodes with this class in this block."""
    original = launcher.Launcher
    launcher.Launcher = cls
    try:
        yield
    finally:
        launcher.Launcher = original


def unpack(value: Any) -> Any:
    """Return a value with the JSON in its texts, at any depth, as trees."""
    if isinstance(value, str) and value.startswith(("{", "[")):
        try:
            return unpack(json.loads(value))
        except ValueError:
            return value
    if isinstance(value, dict):
        return {key: unpack(each) for key, each in value.items()}
    return [unpack(each) for each in value] if isinstance(value, list) else value


def record_code(folder: Path, nodes: Iterable[BaseNode]) -> None:
    """Write the digests of the modules behind each fingerprint in the parameters of these nodes, unless it is recorded.

    With these files, `detloom run --explain` names the modules that have changed.
    """
    for node in nodes:
        for _, value in leaves(unpack(dict(node.exec_properties))):
            digests = digests_of(value) if isinstance(value, str) else None
            file = folder / f"{value}.json"
            if digests is not None and not file.exists():
                folder.mkdir(exist_ok=True)
                write_text_file(file, json.dumps(digests, indent=1, sort_keys=True))


def find_changed_modules(folder: Path, before: str, now: str) -> list[str] | None:
    """Return the names of the modules and data files that differ between two fingerprints, the second of this process.

    Returns:
        None if the earlier fingerprint has no readable record.
    """
    new = digests_of(now)
    try:
        old = json.loads((folder / f"{Path(before).name}.json").read_text(encoding="utf-8"))
        changed = {name for name, _ in old.items() ^ new.items()} if new is not None else None
    except (OSError, ValueError, AttributeError, TypeError):
        return None
    return None if changed is None else sorted(changed)
