"""The states of runs, tasks and schedules, in the same terms for both backends, and their output as text and JSON."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, Literal

from detloom.pipelines.local.console import format_table
from detloom.schemas.reading.format_duration import format_duration
from detloom.schemas.reading.redact import redact
from detloom.schemas.run_file.schedule import Schedule

RunState = Literal["pending", "running", "succeeded", "failed", "cancelled", "paused", "unknown"]
# cached: the outputs come from the cache. skipped: the condition is false. not run: a task that it needs failed.
TaskState = Literal["pending", "running", "succeeded", "failed", "cancelled", "cached", "skipped", "not run", "unknown"]
ScheduleState = Literal["active", "paused", "completed", "unknown"]

ENDED: frozenset[RunState] = frozenset({"succeeded", "failed", "cancelled"})
_OPEN: frozenset[TaskState] = frozenset({"pending", "running"})


@dataclass(frozen=True, kw_only=True)
class TaskStatus:
    """A task of a run.

    Attributes:
        error: the backend's message for a failed task; may be empty.
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
        name: the name chosen at submission; on Vertex AI also the id.
        link: address of its page.
        tasks: in an order in which they can run; empty in a list of runs.
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
        cron: the expression in the backend's format.
        next_time: start of the next run; None if it is paused or completed, and on Kubeflow, which does not report it.
        last_run: the latest run of the schedule.
    """

    schedule_id: str
    name: str
    state: ScheduleState
    cron: str
    link: str
    next_time: datetime | None = None
    last_run: RunStatus | None = None


def start_of(schedule: Schedule) -> datetime | None:
    """Return the start time for a backend, one second early, so that `schedule.start` itself can be the first run.

    Both start with the first time after it (kubeflow/pipelines, cron_schedule.go, getNextScheduledTimeImp;
    aiplatform_v1, types/schedule.py). Kubeflow would make up for times since a start in the past, so such a start is
    dropped and the schedule begins now.
    """
    start = schedule.start_time
    return None if start is None or start <= datetime.now(timezone.utc) else start - timedelta(seconds=1)


@dataclass(frozen=True, kw_only=True)
class PlannedTask:
    """A task of a compiled pipeline that runs a container.

    Attributes:
        groups: the group tasks that contain it, outermost first; a group is a pipeline of its own, with a condition or
            with an exit handler.
    """

    name: str
    groups: tuple[str, ...] = field(default=())


def planned_tasks(spec: Mapping[str, Any]) -> tuple[PlannedTask, ...]:
    """Return the tasks of a pipeline spec (ml_pipelines.PipelineSpec as plain data), each after its dependencies."""
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
    """Return the names, each after its dependencies, otherwise sorted."""
    left, ordered = sorted(tasks), []
    while left:
        waiting = {name for name in left if set(left).intersection(tasks[name].get("dependentTasks", ()))}
        ready = [name for name in left if name not in waiting]
        ordered += ready or left  # the backend refuses a cycle
        left = [name for name in left if name not in ordered]
    return ordered


def fill_in(planned: Sequence[PlannedTask], known: Mapping[str, TaskStatus], run: RunState) -> tuple[TaskStatus, ...]:
    """Return the status of every planned task; the backend only reports tasks (and groups) that it has started.

    The report of a run that has ended can be older than its end: Kubeflow's does not change any more once Argo
    compresses the nodes of a large workflow. Tasks that it shows as running, and tasks that are missing although the
    run succeeded, are then unknown.
    """
    is_old = run in ENDED and any(known[task.name].state in _OPEN for task in planned if task.name in known)
    is_complete = run == "succeeded" and not any(each.state == "skipped" for each in known.values())

    def state_of(task: PlannedTask) -> TaskState:
        groups = [known[name].state for name in task.groups if name in known]
        if "skipped" in groups:
            return "skipped"
        if is_old or is_complete:
            return "unknown"
        return "not run" if run in ENDED or "failed" in groups or "not run" in groups else "pending"

    def status_of(task: PlannedTask) -> TaskStatus:
        status = known.get(task.name) or TaskStatus(name=task.name, state=state_of(task))
        return dataclasses.replace(status, state="unknown") if run in ENDED and status.state in _OPEN else status

    return tuple(map(status_of, planned))


_NONE = "-"
_NO_MESSAGE = "the API gives no message; the log is on the run's page"
_UNKNOWN = "The run has ended, but the API has no final state of: {}. See the run's page."


def format_runs(runs: Sequence[RunStatus], now: datetime) -> str:
    """Format a table with one line per run."""
    rows = [
        (each.run_id, _own_name(each), each.state, format_time(each.started), _lasted(each, now), each.link)
        for each in runs
    ]
    table = [("run", "name", "state", "started", "took", "link"), *rows]
    if all(not row[1] for row in rows):  # the names are the ids
        return format_table([row[:1] + row[2:] for row in table])
    return format_table(table)


def format_run(run: RunStatus, now: datetime) -> str:
    """Format the state of a run and its tasks, and the errors of failed tasks."""
    head = [("run", run.run_id)]
    if name := _own_name(run):
        head.append(("name", name))
    head += [
        ("state", run.state),
        ("started", format_time(run.started)),
        ("took", _lasted(run, now)),
        ("link", run.link),
    ]
    lines = [format_table(head)]
    if run.tasks:
        rows = [(each.name, each.state, format_time(each.started), _lasted(each, now)) for each in run.tasks]
        lines += ["", format_table([("task", "state", "started", "took"), *rows])]
    failed = [f"{each.name}: {each.error or _NO_MESSAGE}" for each in run.tasks if each.state == "failed"]
    failures = [*failed, *([f"the run: {run.error}"] if run.error else [])]
    unknown = [each.name for each in run.tasks if each.state == "unknown"]
    failures += [_UNKNOWN.format(", ".join(unknown))] if unknown and run.state in ENDED else []
    return "\n".join([*lines, "", *failures] if failures else lines)


def format_schedules(schedules: Sequence[ScheduleStatus]) -> str:
    """Format a table with one line per schedule."""
    rows = [
        (each.name, each.state, each.cron, format_time(each.next_time), _last_run(each), each.schedule_id, each.link)
        for each in schedules
    ]
    return format_table([("name", "state", "cron", "next", "last run", "id", "link"), *rows])


def format_time(moment: datetime | None) -> str:
    """Format a time in UTC, to the minute."""
    return _NONE if moment is None else f"{moment.astimezone(timezone.utc):%Y-%m-%d %H:%M} UTC"


def to_plain(status: RunStatus | ScheduleStatus) -> dict[str, Any]:
    """Return plain data for JSON; times are in UTC, formatted as in RFC 3339."""
    plain: dict[str, Any] = _plain(dataclasses.asdict(status))
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _own_name(run: RunStatus) -> str:
    return redact(run.name) if run.name != run.run_id else ""


def _lasted(thing: RunStatus | TaskStatus, now: datetime) -> str:
    if thing.started is None or thing.state in ("pending", "skipped", "not run"):
        return _NONE
    end = thing.ended or (now if thing.state == "running" else None)
    return _NONE if end is None else format_duration((end - thing.started).total_seconds())


def _last_run(schedule: ScheduleStatus) -> str:
    run = schedule.last_run
    return _NONE if run is None else f"{format_time(run.started)}, {run.state}"
