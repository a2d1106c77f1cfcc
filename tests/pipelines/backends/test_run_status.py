import json
from datetime import datetime, timedelta, timezone

import pytest

from detloom.pipelines.backends.run_status import (
    PlannedTask,
    RunStatus,
    ScheduleStatus,
    TaskStatus,
    fill_in,
    format_run,
    format_runs,
    format_schedules,
    planned_tasks,
    to_plain,
)


def dag(**tasks):
    """Return a DAG of tasks: name -> (component, dependencies)."""
    return {
        "dag": {
            "tasks": {
                name: {"componentRef": {"name": component}, "dependentTasks": list(after)}
                for name, (component, after) in tasks.items()
            }
        }
    }


def test_tasks_come_after_those_that_they_depend_on():
    spec = {"root": dag(A=("c", ["B"]), B=("c", ["C"]), C=("c", [])), "components": {"c": {"executorLabel": "e"}}}
    assert [task.name for task in planned_tasks(spec)] == ["C", "B", "A"]


def test_tasks_of_inner_pipelines_take_the_place_of_their_group():
    components = {"c": {"executorLabel": "e"}, "g": dag(X=("c", []), Y=("c", ["X"])), "h": dag(Z=("c", []))}
    spec = {"root": dag(First=("c", []), Group=("g", ["First"]), Zlast=("h", ["Group"])), "components": components}
    assert planned_tasks(spec) == (
        PlannedTask(name="First"),
        PlannedTask(name="X", groups=("Group",)),
        PlannedTask(name="Y", groups=("Group",)),
        PlannedTask(name="Z", groups=("Zlast",)),
    )


def test_a_cyclic_spec_ends_the_search():
    circle = {"root": dag(A=("c", ["B"]), B=("c", ["A"])), "components": {"c": {"executorLabel": "e"}}}
    assert [task.name for task in planned_tasks(circle)] == ["A", "B"]
    inside_itself = {"root": dag(G=("g", [])), "components": {"g": dag(G=("g", []))}}
    assert [task.name for task in planned_tasks(inside_itself)] == ["G"]
    assert planned_tasks({}) == ()


@pytest.mark.parametrize(
    ("known", "run", "shown"),
    [
        ({"A": "running"}, "running", ["running", "pending"]),  # not reported yet
        ({"A": "succeeded", "g": "skipped"}, "running", ["succeeded", "skipped"]),
        ({"A": "failed"}, "failed", ["failed", "not run"]),
        ({"A": "running", "g": "failed"}, "running", ["running", "not run"]),
        # Above 1 MiB of status, the API of Kubeflow keeps the last nodes that Argo did not compress.
        ({"A": "running"}, "succeeded", ["unknown", "unknown"]),
        ({"A": "succeeded"}, "succeeded", ["succeeded", "unknown"]),
        ({"A": "running"}, "failed", ["unknown", "unknown"]),
        ({"A": "succeeded", "g": "skipped"}, "succeeded", ["succeeded", "skipped"]),
    ],
)
def test_tasks_without_a_current_report_get_the_state_that_the_run_implies(known, run, shown):
    planned = (PlannedTask(name="A"), PlannedTask(name="B", groups=("g",)))
    statuses = fill_in(planned, {name: TaskStatus(name=name, state=state) for name, state in known.items()}, run)
    assert [status.state for status in statuses] == shown


START = datetime(2026, 1, 31, 3, 0, tzinfo=timezone.utc)
NOW = START + timedelta(hours=2)


def run(run_id="a", name="a", state="running", **values):
    return RunStatus(run_id=run_id, name=name, state=state, link="https://x/a", started=START, **values)


def test_the_table_shows_names_only_if_they_differ_from_ids():
    ended = run("b", "b", "failed", ended=START + timedelta(minutes=12))
    assert format_runs([run(), ended], NOW).splitlines() == [
        "  run  state    started               took    link",
        "  a    running  2026-01-31 03:00 UTC  2 h     https://x/a",
        "  b    failed   2026-01-31 03:00 UTC  12 min  https://x/a",
    ]
    assert format_runs([run("id", "cells-1")], NOW).splitlines() == [
        "  run  name     state    started               took  link",
        "  id   cells-1  running  2026-01-31 03:00 UTC  2 h   https://x/a",
    ]


def test_a_run_shows_its_tasks_and_their_errors():
    tasks = (
        TaskStatus(name="Gen", state="cached", started=START, ended=START + timedelta(seconds=2)),
        TaskStatus(name="Trainer", state="failed", started=START, ended=NOW, error="out of memory"),
        TaskStatus(name="Card", state="failed"),
        TaskStatus(name="Pusher", state="not run"),
    )
    text = format_run(run(state="failed", ended=NOW, error="Trainer failed", tasks=tasks), NOW)
    assert text.splitlines() == [
        "  run      a",
        "  state    failed",
        "  started  2026-01-31 03:00 UTC",
        "  took     2 h",
        "  link     https://x/a",
        "",
        "  task     state    started               took",
        "  Gen      cached   2026-01-31 03:00 UTC  2 s",
        "  Trainer  failed   2026-01-31 03:00 UTC  2 h",
        "  Card     failed   -                     -",
        "  Pusher   not run  -                     -",
        "",
        "Trainer: out of memory",
        "Card: the API gives no message; the log is on the run's page",
        "the run: Trainer failed",
    ]


def test_schedules_show_the_next_time_and_the_last_run():
    nightly = ScheduleStatus(
        schedule_id="7",
        name="nightly",
        state="active",
        cron="0 0 3 * * *",
        link="https://x/7",
        next_time=NOW,
        last_run=run(state="succeeded"),
    )
    weekly = ScheduleStatus(schedule_id="8", name="weekly", state="paused", cron="0 0 3 * * 0", link="https://x/8")
    assert format_schedules([nightly, weekly]).splitlines() == [
        "  name     state   cron         next                  last run                         id  link",
        "  nightly  active  0 0 3 * * *  2026-01-31 05:00 UTC  2026-01-31 03:00 UTC, succeeded  7   https://x/7",
        "  weekly   paused  0 0 3 * * 0  -                     -                                8   https://x/8",
    ]


def test_json_has_times_as_rfc_3339():
    plain = json.loads(json.dumps(to_plain(run(tasks=(TaskStatus(name="Gen", state="pending"),)))))
    assert plain["started"] == "2026-01-31T03:00:00Z"
    assert plain["tasks"] == [{"name": "Gen", "state": "pending", "started": None, "ended": None, "error": ""}]


def test_a_state_that_stays_unknown_is_explained_and_control_characters_in_names_are_escaped():
    text = format_run(run(state="succeeded", tasks=(TaskStatus(name="Pusher", state="unknown"),)), NOW)
    assert text.splitlines()[-1].startswith("The run has ended, but the API has no final state of: Pusher.")
    assert "\\x1b[2J" in format_runs([run("id", "\x1b[2J")], NOW)
