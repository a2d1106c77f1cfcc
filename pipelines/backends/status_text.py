"""Runs, tasks and schedules as tables for people and as JSON for programs."""

import dataclasses
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from detloom.pipelines.backends.run_status import RunStatus, ScheduleStatus, TaskStatus
from detloom.pipelines.console import format_table
from detloom.schemas.redact import redact

_NONE = "-"
_NO_MESSAGE = "the API gives no message; the log is on the run's page"


def format_runs(runs: Sequence[RunStatus], now: datetime) -> str:
    """A table, a run a line."""
    rows = [
        (each.run_id, _named(each), each.state, format_time(each.started), _lasted(each, now), each.link)
        for each in runs
    ]
    if all(not row[1] for row in rows):  # ids say it all
        return format_table([("run", "state", "started", "took", "link"), *(row[:1] + row[2:] for row in rows)])
    return format_table([("run", "name", "state", "started", "took", "link"), *rows])


def format_run(run: RunStatus, now: datetime) -> str:
    """One run: what became of it and of each task, and what failed why."""
    head = [("run", run.run_id), *([("name", _named(run))] if _named(run) else [])]
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
    return "\n".join([*lines, "", *failures] if failures else lines)


def format_schedules(schedules: Sequence[ScheduleStatus]) -> str:
    """A table, a schedule a line."""
    rows = [
        (each.name, each.state, each.cron, format_time(each.next_time), _last_run(each), each.schedule_id, each.link)
        for each in schedules
    ]
    return format_table([("name", "state", "cron", "next", "last run", "id", "link"), *rows])


def format_time(moment: datetime | None) -> str:
    """To the minute, UTC."""
    return _NONE if moment is None else f"{moment.astimezone(timezone.utc):%Y-%m-%d %H:%M} UTC"


def format_seconds(seconds: float) -> str:
    """Such as "5 s", "12 min 5 s" or "3 h 20 min"."""
    whole = max(round(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def to_plain(status: RunStatus | ScheduleStatus) -> dict[str, Any]:
    """For JSON; times are in UTC, as RFC 3339 writes them."""
    plain: dict[str, Any] = _plain(dataclasses.asdict(status))
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _named(run: RunStatus) -> str:
    return redact(run.name) if run.name != run.run_id else ""


def _lasted(thing: RunStatus | TaskStatus, now: datetime) -> str:
    if thing.started is None or thing.state in ("pending", "skipped", "not run"):
        return _NONE
    end = thing.ended or (now if thing.state == "running" else None)
    return _NONE if end is None else format_seconds((end - thing.started).total_seconds())


def _last_run(schedule: ScheduleStatus) -> str:
    run = schedule.last_run
    return _NONE if run is None else f"{format_time(run.started)}, {run.state}"
