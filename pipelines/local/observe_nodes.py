"""Observe the nodes of TFX's local runner, which has no hooks, through the class that launches them."""

import contextlib
from collections.abc import Iterator
from typing import Any

from ml_metadata.proto import metadata_store_pb2 as pb
from tfx.orchestration.portable import launcher
from tfx.orchestration.portable.data_types import ExecutionInfo

from detloom.pipelines.local.console import NodeEnd, NodeLog

_ENDS: dict[int, NodeEnd] = {pb.Execution.CACHED: "cached", pb.Execution.FAILED: "failed"}


@contextlib.contextmanager
def observe_nodes(log: NodeLog) -> Iterator[None]:
    """Tell `log` in this block when a node begins, and how it has ended unless it raised an error."""

    class ObservedLauncher(launcher.Launcher):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self._observed, self._metadata = settings["pipeline_node"].node_info.id, settings["mlmd_connection"]

        def launch(self) -> ExecutionInfo | None:
            log.begin(self._observed)
            execution = super().launch()
            log.end(self._observed, self._find_end(execution))
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
