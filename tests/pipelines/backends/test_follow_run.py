from datetime import datetime, timedelta, timezone

import pytest

from detloom.pipelines.backends.api_errors import ApiError
from detloom.pipelines.backends.follow_run import follow_run
from detloom.pipelines.backends.run_status import RunStatus, TaskStatus

START = datetime(2026, 1, 31, 3, 0, tzinfo=timezone.utc)


def task(name, state, minutes=None, error=""):
    return TaskStatus(
        name=name,
        state=state,
        started=START,
        ended=None if minutes is None else START + timedelta(minutes=minutes),
        error=error,
    )


class Told:
    """Answers one after the other."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def get_run(self, run_id):
        answer = self.answers.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        state, *tasks = answer
        return RunStatus(run_id=run_id, name="n", state=state, link="l", tasks=tuple(tasks))


def follow(*answers):
    lines, backend = [], Told(*answers)
    run = follow_run(backend, "cells-1", lines.append, every_seconds=0.0001)
    assert backend.answers == []
    return run, lines


AWAY = ApiError("unreachable", "no connection.")


def test_each_change_of_a_task_is_a_line():
    run, lines = follow(
        ("pending", task("Gen", "pending"), task("Trainer", "pending")),
        ("running", task("Gen", "running"), task("Trainer", "pending")),
        ("running", task("Gen", "running"), task("Trainer", "pending")),
        ("running", task("Gen", "cached", 1), task("Trainer", "running")),
        ("failed", task("Gen", "cached", 1), task("Trainer", "failed", 12, "out of memory"), task("Pusher", "not run")),
    )
    assert lines == [
        "03:00:00 UTC  Gen  running",
        "03:01:00 UTC  Gen  cached",
        "03:00:00 UTC  Trainer  running",
        "03:12:00 UTC  Trainer  failed after 12 min 0 s: out of memory",
    ]
    assert run.state == "failed"


def test_a_server_that_is_away_for_a_while_is_waited_for():
    run, lines = follow(AWAY, AWAY, ("running", task("Gen", "running")), *[AWAY] * 10, ("succeeded",))
    assert (run.state, lines) == ("succeeded", ["03:00:00 UTC  Gen  running"])


def test_a_server_that_stays_away_is_said_and_how_to_go_on():
    with pytest.raises(ApiError, match=r"no connection\. The run goes on: `detloom status RUN_FILE cells-1 --wait`"):
        follow(*[AWAY] * 11)


def test_credentials_that_expire_end_it_at_once():
    with pytest.raises(ApiError, match=r"expired\. The run goes on") as expired:
        follow(("running",), ApiError("signed out", "the token has expired."))
    assert expired.value.kind == "signed out"
