"""What the API of Kubeflow Pipelines tells of a run's tasks.

Its task details are the nodes of the Argo workflow (kubeflow/pipelines, backend/src/common/util/workflow.go,
NodeStatuses). A task NAME is two nodes: "NAME-driver", which resolves inputs and looks into the cache, and "NAME",
which holds the container (backend/src/v2/compiler/argocompiler/dag.go, task). There are others ("root", "executor"),
and none for tasks that are not reached. Ids of nodes are not told, so that a task answered from the cache looks like
one that succeeded quickly. Messages of failed tasks are not filled in
(backend/src/apiserver/server/api_converter.go, toApiPipelineTaskDetail): they stand in the logs of their pods.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Any

from detloom.pipelines.backends.run_status import PlannedTask, TaskState, TaskStatus

_DRIVER = "-driver"
_STATES: dict[str, TaskState] = {
    "PENDING": "pending",
    "RUNNING": "running",
    "SUCCEEDED": "succeeded",
    "SKIPPED": "skipped",
    "FAILED": "failed",
    "CANCELING": "running",
    "CANCELED": "cancelled",
    "PAUSED": "pending",
}


def known_tasks(run: Any, planned: Sequence[PlannedTask], error_of: Callable[[Any], str]) -> dict[str, TaskStatus]:
    """The tasks and groups of tasks that have nodes, by name.

    Args:
        run: V2beta1Run.
        error_of: the message of a task detail, or an empty text.
    """
    details = (run.run_details.task_details if run.run_details else None) or ()
    nodes = {str(detail.display_name): detail for detail in details}
    names = {task.name for task in planned} | {group for task in planned for group in task.groups}
    known = {name: _status(name, nodes.get(name), nodes.get(name + _DRIVER), error_of) for name in names}
    return {name: status for name, status in known.items() if status is not None}


def _status(name: str, node: Any, driver: Any, error_of: Callable[[Any], str]) -> TaskStatus | None:
    node_state = _STATES.get(str(node.state)) if node is not None else None
    driver_state = _STATES.get(str(driver.state)) if driver is not None else None
    state: TaskState
    if driver_state == "failed":  # the container's node is then omitted: its state is unspecified
        state, node_of_state = driver_state, driver
    elif node_state is not None:
        state, node_of_state = node_state, node
    elif driver_state is not None:
        state, node_of_state = "running" if driver_state == "succeeded" else driver_state, driver
    else:
        return None
    return TaskStatus(
        name=name,
        state=state,
        started=moment((driver or node).start_time),
        ended=None if state in ("running", "pending") else moment(node_of_state.end_time),
        error=error_of(node_of_state) if state == "failed" else "",
    )


def moment(value: datetime | None) -> datetime | None:
    """A time of the API; where it has none, it gives the year 1 or 1970."""
    if value is None or value.year <= 1970:
        return None
    return value if value.tzinfo else value.replace(tzinfo=timezone.utc)
