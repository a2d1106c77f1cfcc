"""Test single submission, following a run and schedules by name."""

from datetime import timedelta

import grpc
import pytest
from fake_backends import sample_job
from fake_backends.kubeflow import START, Answer, error
from fake_backends.vertex import SETTINGS

from detloom.pipelines.backends.api_errors import ApiError
from detloom.pipelines.backends.backend import connect, create_schedule, find_schedule, follow_run, submit_once
from detloom.pipelines.backends.compiled_job import parse_job
from detloom.pipelines.backends.kubeflow_api import connect_kubeflow
from detloom.pipelines.backends.kubeflow_client import KubeflowBackend
from detloom.pipelines.backends.run_status import RunStatus, TaskStatus
from detloom.pipelines.backends.vertex_client import VertexBackend
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.kubeflow import Kubeflow
from detloom.schemas.run_file.schedule import Schedule

NIGHTLY = Schedule(cron="0 3 * * *")


@pytest.fixture
def kubeflow(cluster):
    settings = Kubeflow(host=cluster.host, image="x/detloom:1")
    return KubeflowBackend(settings, "cells", connect_kubeflow(settings))


@pytest.fixture
def vertex(region):
    return VertexBackend(SETTINGS, "cells", region.api())


@pytest.fixture
def kubeflow_job():
    return parse_job(sample_job.kubeflow_job(), "kubeflow", "F")


@pytest.fixture
def vertex_job():
    return parse_job(sample_job.vertex_job(), "vertex", "F")


def test_a_lost_response_does_not_submit_twice_on_kubeflow(cluster, kubeflow, kubeflow_job):
    cluster.answer_next("POST", "/runs", Answer(drop=True, after=True))
    run = submit_once(kubeflow, kubeflow_job, "cells-1", is_new_name=True)
    assert [each.display_name for each in cluster.runs] == ["cells-1"]
    assert run.run_id == cluster.runs[0].run_id
    assert cluster.count("POST", "/runs") == 1


def test_a_lost_response_does_not_submit_twice_on_vertex(region, vertex, vertex_job):
    region.done_anyway.add("CreatePipelineJob")
    region.fail("CreatePipelineJob", grpc.StatusCode.UNAVAILABLE, "connection reset")
    run = submit_once(vertex, vertex_job, "cells-1", is_new_name=True)
    assert (run.run_id, len(region.jobs)) == ("cells-1", 1)
    assert region.calls == ["CreatePipelineJob", "GetPipelineJob"]


@pytest.mark.parametrize("answer", [Answer(drop=True), error(503, "upstream connect error"), error(504, "timeout")])
def test_a_lost_request_is_reported_and_not_repeated(cluster, kubeflow, kubeflow_job, answer):
    cluster.answer_next("POST", "/runs", answer)
    with pytest.raises(ApiError, match=r"`detloom status RUN_FILE`.* no run 'cells-1'"):
        submit_once(kubeflow, kubeflow_job, "cells-1", is_new_name=True)
    assert (cluster.count("POST", "/runs"), cluster.runs) == (1, [])


def test_an_unknown_outcome_of_a_submission_is_reported_and_a_refused_one_is_not_searched_for(
    region, vertex, vertex_job
):
    for method in ("CreatePipelineJob", "GetPipelineJob"):
        region.fail(method, grpc.StatusCode.DEADLINE_EXCEEDED, "")
    with pytest.raises(ApiError, match=r"not known .*'cells-1'"):
        submit_once(vertex, vertex_job, "cells-1", is_new_name=True)
    region.calls.clear()
    region.fail("CreatePipelineJob", grpc.StatusCode.PERMISSION_DENIED, "")
    with pytest.raises(ApiError):
        submit_once(vertex, vertex_job, "cells-1", is_new_name=True)
    assert region.calls == ["CreatePipelineJob"]


def test_a_run_name_in_use_is_refused_with_the_next_step(cluster, kubeflow, kubeflow_job):
    taken = submit_once(kubeflow, kubeflow_job, "cells-1", is_new_name=False)
    message = f"--name: .*'cells-1'.* pending.* `detloom status RUN_FILE {taken.run_id}`"
    with pytest.raises(InputError, match=message):
        submit_once(kubeflow, kubeflow_job, "cells-1", is_new_name=False)
    assert len(cluster.runs) == 1


def test_a_schedule_name_in_use_is_refused_without_replace(cluster, kubeflow, kubeflow_job):
    first = create_schedule(kubeflow, kubeflow_job, NIGHTLY, "nightly", replace=False)
    with pytest.raises(InputError, match=r"'nightly'.* active: `--replace`"):
        create_schedule(kubeflow, kubeflow_job, NIGHTLY, "nightly", replace=False)
    second = create_schedule(kubeflow, kubeflow_job, NIGHTLY, "nightly", replace=True)
    assert [each.recurring_run_id for each in cluster.recurring] == [second.schedule_id] != [first.schedule_id]
    create_schedule(kubeflow, kubeflow_job, NIGHTLY, "weekly", replace=False)
    assert [each.display_name for each in cluster.recurring] == ["nightly", "weekly"]


def test_the_suggested_delete_command_is_quoted_and_contains_no_secret(vertex, vertex_job):
    for name, shown, word in (
        ("every night", "every night", "'every night'"),
        ("x://ann:hunter2@y", "x://(hidden)@y", "'x://(hidden)@y'"),
    ):
        create_schedule(vertex, vertex_job, NIGHTLY, name, replace=False)
        with pytest.raises(InputError) as refused:
            create_schedule(vertex, vertex_job, NIGHTLY, name, replace=False)
        assert f"'{shown}'" in str(refused.value)
        assert f"`detloom schedule delete RUN_FILE {word}`" in str(refused.value)
        assert "hunter2" not in str(refused.value)


def test_a_schedule_that_cannot_be_created_or_deleted_is_reported_with_what_stays(region, vertex, vertex_job):
    create_schedule(vertex, vertex_job, NIGHTLY, "nightly", replace=False)
    region.fail("CreateSchedule", grpc.StatusCode.INVALID_ARGUMENT, "no")
    with pytest.raises(ApiError, match="create the schedule"):
        create_schedule(vertex, vertex_job, NIGHTLY, "nightly", replace=True)
    assert [each.schedule_id for each in vertex.list_schedules()] == ["1000"]
    region.fail("CreateSchedule", grpc.StatusCode.DEADLINE_EXCEEDED, "")
    with pytest.raises(ApiError, match="`detloom schedule list RUN_FILE`"):
        create_schedule(vertex, vertex_job, NIGHTLY, "weekly", replace=False)
    region.fail("DeleteSchedule", grpc.StatusCode.PERMISSION_DENIED, "")
    with pytest.raises(ApiError, match=r"\(1001\).* `detloom schedule delete RUN_FILE 1000`"):
        create_schedule(vertex, vertex_job, NIGHTLY, "nightly", replace=True)


def test_a_lost_response_does_not_create_a_schedule_twice(region, vertex, vertex_job):
    create_schedule(vertex, vertex_job, NIGHTLY, "nightly", replace=False)
    region.done_anyway.add("CreateSchedule")
    region.fail("CreateSchedule", grpc.StatusCode.UNAVAILABLE, "connection reset")
    created = create_schedule(vertex, vertex_job, NIGHTLY, "nightly", replace=True)
    assert [each.schedule_id for each in vertex.list_schedules()] == [created.schedule_id] == ["1001"]


def test_a_schedule_with_a_past_end_is_refused(region, vertex, vertex_job):
    with pytest.raises(InputError, match=r"schedule\.end: got '2020-01-01'"):
        create_schedule(vertex, vertex_job, Schedule(cron="0 3 * * *", end="2020-01-01"), "nightly", replace=False)
    assert region.calls == []


def test_a_schedule_is_found_by_name_or_id(vertex, vertex_job):
    with pytest.raises(InputError, match=r"'x'.* none"):
        find_schedule(vertex, "x")
    for _ in range(2):
        vertex.create_schedule(vertex_job, NIGHTLY, "nightly")
    weekly = vertex.create_schedule(vertex_job, NIGHTLY, "weekly")
    assert find_schedule(vertex, "weekly").schedule_id == weekly.schedule_id
    assert find_schedule(vertex, "1001").name == "nightly"
    with pytest.raises(InputError, match=r"2 schedules .*'nightly'.*: 1001, 1000"):
        find_schedule(vertex, "nightly")
    with pytest.raises(InputError, match=r"'daily'.*: nightly, weekly"):
        find_schedule(vertex, "daily")


def test_a_run_file_without_the_section_is_refused(run_of):
    with pytest.raises(InputError, match=r"^vertex: .* docs/vertex\.md"):
        connect(run_of(), "vertex")


def task(name, state, minutes=None, error=""):
    ended = None if minutes is None else START + timedelta(minutes=minutes)
    return TaskStatus(name=name, state=state, started=START, ended=ended, error=error)


class FakeBackend:
    """A backend that returns the given answers in order."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def get_run(self, run_id):
        answer = self.answers.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        state, *tasks = answer
        return RunStatus(run_id=run_id, name="n", state=state, link="l", tasks=tuple(tasks))


def follow(*answers):
    lines, backend = [], FakeBackend(*answers)
    run = follow_run(backend, "cells-1", lines.append, every_seconds=0.0001)
    assert backend.answers == []
    return run, lines


AWAY = ApiError("unreachable", "no connection.")


def test_each_change_of_a_task_prints_a_line():
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
        "03:12:00 UTC  Trainer  failed after 12 min: out of memory",
    ]
    assert run.state == "failed"


def test_the_states_of_the_last_tasks_are_waited_for_a_limited_time(monkeypatch):
    """Seen on a cluster: the run had succeeded, and its exit handler was still running."""
    unknown, ended = task("Notifier", "unknown"), task("Notifier", "succeeded", 1)
    run, lines = follow(("succeeded", unknown), ("succeeded", ended))
    assert (run.tasks, lines) == ((ended,), ["03:01:00 UTC  Notifier  succeeded after 1 min"])
    monkeypatch.setattr("detloom.pipelines.backends.backend._LAST_STATES_SECONDS", 0.0)
    assert follow(("succeeded", unknown))[0].tasks == (unknown,)


def test_a_temporary_failure_of_the_server_is_tolerated_and_a_permanent_one_reported():
    run, lines = follow(AWAY, AWAY, ("running", task("Gen", "running")), *[AWAY] * 10, ("succeeded",))
    assert (run.state, lines) == ("succeeded", ["03:00:00 UTC  Gen  running"])
    with pytest.raises(ApiError, match=r"^no connection\. .*`detloom status RUN_FILE cells-1 --wait`"):
        follow(*[AWAY] * 11)


def test_expired_credentials_end_following_at_once():
    with pytest.raises(ApiError, match=r"expired\. .*`detloom status") as expired:
        follow(("running",), ApiError("signed out", "the token has expired."))
    assert expired.value.kind == "signed out"
