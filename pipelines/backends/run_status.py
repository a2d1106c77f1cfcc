"""Runs, tasks and schedules in the same words for both backends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

RunState = Literal["pending", "running", "succeeded", "failed", "cancelled", "paused", "unknown"]
# cached: answered from the cache. skipped: its condition was false. not run: what it waits for did not succeed.
TaskState = Literal["pending", "running", "succeeded", "failed", "cancelled", "cached", "skipped", "not run", "unknown"]
ScheduleState = Literal["active", "paused", "completed", "unknown"]

ENDED: frozenset[RunState] = frozenset({"succeeded", "failed", "cancelled"})


@dataclass(frozen=True, kw_only=True)
class TaskStatus:
    """A task of a run.

    Attributes:
        error: message of the backend, for a task that failed; empty where it gives none.
    """

    name: str
    state: TaskState
    started: datetime | None = None
    ended: datetime | None = None
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """A run. Times are in UTC.

    Attributes:
        name: that people gave it; with Vertex AI also its id.
        link: of its page.
        tasks: in the order in which they can run; empty in a list of runs.
    """

    run_id: str
    name: str
    state: RunState
    link: str
    created: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None
    error: str = ""
    tasks: tuple[TaskStatus, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ScheduleStatus:
    """A schedule. Times are in UTC.

    Attributes:
        cron: as the backend has it.
        next_time: when it will start a run; None while it is paused, when it is over, and where nobody knows.
        last_run: the latest run that it started.
    """

    schedule_id: str
    name: str
    state: ScheduleState
    cron: str
    link: str
    next_time: datetime | None = None
    last_run: RunStatus | None = None


@dataclass(frozen=True, kw_only=True)
class PlannedTask:
    """A task of a compiled pipeline that runs a container.

    Attributes:
        groups: names of the tasks that it is part of, outermost first; such a task is a pipeline of its own, with a
            condition, or the whole that an exit handler waits for.
    """

    name: str
    groups: tuple[str, ...] = field(default=())


def planned_tasks(spec: Mapping[str, Any]) -> tuple[PlannedTask, ...]:
    """The tasks of a pipeline spec (ml_pipelines.PipelineSpec as plain data), each after those that it depends on."""
    components = spec.get("components", {})

    def of_component(component: Mapping[str, Any], groups: tuple[str, ...]) -> list[PlannedTask]:
        tasks: Mapping[str, Any] = component.get("dag", {}).get("tasks", {})
        found: list[PlannedTask] = []
        for name in _in_order(tasks):
            inner = components.get(tasks[name].get("componentRef", {}).get("name"), {})
            is_group = "dag" in inner and name not in groups
            found += of_component(inner, (*groups, name)) if is_group else [PlannedTask(name=name, groups=groups)]
        return found

    return tuple(of_component(spec.get("root", {}), ()))


def _in_order(tasks: Mapping[str, Any]) -> list[str]:
    """Names, each after those it depends on; where that leaves a choice, by name."""
    left, ordered = sorted(tasks), []
    while left:
        ready = [name for name in left if not set(tasks[name].get("dependentTasks", ())) & set(left)]
        ordered += ready or left  # a circle is the backend's to refuse
        left = [name for name in left if name not in ordered]
    return ordered


def fill_in(planned: Sequence[PlannedTask], known: Mapping[str, TaskStatus], run: RunState) -> tuple[TaskStatus, ...]:
    """The status of every planned task, where the backend only tells of tasks (and groups) that it has begun with."""

    def state_of(task: PlannedTask) -> TaskState:
        groups = [known[name].state for name in task.groups if name in known]
        if "skipped" in groups:
            return "skipped"
        return "not run" if run in ENDED or "failed" in groups or "not run" in groups else "pending"

    return tuple(known.get(task.name) or TaskStatus(name=task.name, state=state_of(task)) for task in planned)
