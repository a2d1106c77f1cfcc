"""Submitting once, and schedules by name, against both servers."""

import grpc
import pytest
from fake_backends import sample_job
from fake_backends.kubeflow import Answer, error
from fake_backends.vertex import SETTINGS

from detloom.pipelines.backends.api_errors import ApiError
from detloom.pipelines.backends.backend import connect, create_schedule, find_schedule, submit_once
from detloom.pipelines.backends.compiled_job import parse_job
from detloom.pipelines.backends.kubeflow_api import connect_kubeflow
from detloom.pipelines.backends.kubeflow_client import KubeflowBackend
from detloom.pipelines.backends.vertex_client import VertexBackend
from detloom.schemas.errors import InputError
from detloom.schemas.kubeflow_config import Kubeflow
from detloom.schemas.schedule_config import Schedule

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


def test_a_lost_answer_does_not_submit_twice_on_kubeflow(cluster, kubeflow, kubeflow_job):
    cluster.answer_next("POST", "/runs", Answer(drop=True, after=True))
    run = submit_once(kubeflow, kubeflow_job, "cells-1", is_new_name=True)
    assert [each.display_name for each in cluster.runs] == ["cells-1"]
    assert run.run_id == cluster.runs[0].run_id
    assert cluster.count("POST", "/runs") == 1


def test_a_lost_answer_does_not_submit_twice_on_vertex(region, vertex, vertex_job):
    region.done_anyway.add("CreatePipelineJob")
    region.fail("CreatePipelineJob", grpc.StatusCode.UNAVAILABLE, "connection reset")
    run = submit_once(vertex, vertex_job, "cells-1", is_new_name=True)
    assert (run.run_id, len(region.jobs)) == ("cells-1", 1)
    assert region.calls == ["CreatePipelineJob", "GetPipelineJob"]


@pytest.mark.parametrize("answer", [Answer(drop=True), error(503, "upstream connect error"), error(504, "timeout")])
def test_a_request_that_was_lost_is_not_repeated_but_said(cluster, kubeflow, kubeflow_job, answer):
    cluster.answer_next("POST", "/runs", answer)
    message = r"look with `detloom status RUN_FILE` before you submit again: no run 'cells-1' is there so far"
    with pytest.raises(ApiError, match=message):
        submit_once(kubeflow, kubeflow_job, "cells-1", is_new_name=True)
    assert (cluster.count("POST", "/runs"), cluster.runs) == (1, [])


def test_when_nobody_can_tell_that_is_said(region, vertex, vertex_job):
    for method in ("CreatePipelineJob", "GetPipelineJob"):
        region.fail(method, grpc.StatusCode.DEADLINE_EXCEEDED, "")
    with pytest.raises(ApiError, match="whether the run 'cells-1' was created is not known"):
        submit_once(vertex, vertex_job, "cells-1", is_new_name=True)


def test_a_refusal_is_not_looked_after(region, vertex, vertex_job):
    region.fail("CreatePipelineJob", grpc.StatusCode.PERMISSION_DENIED, "")
    with pytest.raises(ApiError):
        submit_once(vertex, vertex_job, "cells-1", is_new_name=True)
    assert region.calls == ["CreatePipelineJob"]


def test_a_name_that_is_taken_is_refused_with_the_next_step(cluster, kubeflow, kubeflow_job):
    taken = submit_once(kubeflow, kubeflow_job, "cells-1", is_new_name=False)
    message = (
        f"--name: there is a run named 'cells-1' already, which is pending; look at it \\(`detloom status RUN_FILE "
        f"{taken.run_id}`\\) or choose another --name"
    )
    with pytest.raises(InputError, match=message):
        submit_once(kubeflow, kubeflow_job, "cells-1", is_new_name=False)
    assert len(cluster.runs) == 1


def test_a_schedule_of_the_same_name_is_refused_unless_it_is_to_be_replaced(cluster, kubeflow, kubeflow_job):
    first = create_schedule(kubeflow, kubeflow_job, NIGHTLY, "nightly", replace=False)
    with pytest.raises(InputError, match="there is a schedule named 'nightly' already, which is active: `--replace`"):
        create_schedule(kubeflow, kubeflow_job, NIGHTLY, "nightly", replace=False)
    second = create_schedule(kubeflow, kubeflow_job, NIGHTLY, "nightly", replace=True)
    assert [each.recurring_run_id for each in cluster.recurring] == [second.schedule_id] != [first.schedule_id]
    create_schedule(kubeflow, kubeflow_job, NIGHTLY, "weekly", replace=False)
    assert [each.display_name for each in cluster.recurring] == ["nightly", "weekly"]


def test_the_command_that_removes_a_schedule_can_be_pasted_and_holds_no_secret(vertex, vertex_job):
    for name, shown, word in (
        ("every night", "every night", "'every night'"),
        ("x://ann:hunter2@y", "x://(hidden)@y", "'x://(hidden)@y'"),
    ):
        create_schedule(vertex, vertex_job, NIGHTLY, name, replace=False)
        with pytest.raises(InputError) as refused:
            create_schedule(vertex, vertex_job, NIGHTLY, name, replace=False)
        assert str(refused.value) == (
            f"there is a schedule named '{shown}' already, which is active: `--replace` replaces it, `--name` makes "
            f"another one, and `detloom schedule delete RUN_FILE {word}` removes it."
        )


def test_the_old_schedule_stays_if_the_new_one_cannot_be_created(region, vertex, vertex_job):
    create_schedule(vertex, vertex_job, NIGHTLY, "nightly", replace=False)
    region.fail("CreateSchedule", grpc.StatusCode.INVALID_ARGUMENT, "no")
    with pytest.raises(ApiError, match="could not create the schedule"):
        create_schedule(vertex, vertex_job, NIGHTLY, "nightly", replace=True)
    assert [each.schedule_id for each in vertex.list_schedules()] == ["1000"]


def test_an_old_schedule_that_cannot_be_deleted_is_named(region, vertex, vertex_job):
    create_schedule(vertex, vertex_job, NIGHTLY, "nightly", replace=False)
    region.fail("DeleteSchedule", grpc.StatusCode.PERMISSION_DENIED, "")
    message = (
        r"schedule \(1001\) is there, and so is the old one: delete that with `detloom schedule delete RUN_FILE 1000`"
    )
    with pytest.raises(ApiError, match=message):
        create_schedule(vertex, vertex_job, NIGHTLY, "nightly", replace=True)


def test_a_lost_answer_does_not_create_a_schedule_twice(region, vertex, vertex_job):
    create_schedule(vertex, vertex_job, NIGHTLY, "nightly", replace=False)
    region.done_anyway.add("CreateSchedule")
    region.fail("CreateSchedule", grpc.StatusCode.UNAVAILABLE, "connection reset")
    created = create_schedule(vertex, vertex_job, NIGHTLY, "nightly", replace=True)
    assert [each.schedule_id for each in vertex.list_schedules()] == [created.schedule_id] == ["1001"]


def test_a_schedule_that_was_lost_is_said(region, vertex, vertex_job):
    region.fail("CreateSchedule", grpc.StatusCode.DEADLINE_EXCEEDED, "")
    with pytest.raises(ApiError, match="look with `detloom schedule list RUN_FILE` before you create it again"):
        create_schedule(vertex, vertex_job, NIGHTLY, "nightly", replace=False)


def test_a_schedule_whose_end_is_over_is_refused(region, vertex, vertex_job):
    with pytest.raises(InputError, match=r"schedule\.end: got '2020-01-01', which is over"):
        create_schedule(vertex, vertex_job, Schedule(cron="0 3 * * *", end="2020-01-01"), "nightly", replace=False)
    assert region.calls == []


def test_a_schedule_is_found_by_name_or_id(vertex, vertex_job):
    for _ in range(2):
        vertex.create_schedule(vertex_job, NIGHTLY, "nightly")
    weekly = vertex.create_schedule(vertex_job, NIGHTLY, "weekly")
    assert find_schedule(vertex, "weekly").schedule_id == weekly.schedule_id
    assert find_schedule(vertex, "1001").name == "nightly"
    with pytest.raises(InputError, match="2 schedules have the name 'nightly'; give the id of one: 1001, 1000"):
        find_schedule(vertex, "nightly")
    with pytest.raises(InputError, match="no schedule has the name or id 'daily'; there are: nightly, weekly"):
        find_schedule(vertex, "daily")


def test_no_schedules_at_all_are_said(kubeflow):
    with pytest.raises(InputError, match="no schedule has the name or id 'x'; there are: none at all"):
        find_schedule(kubeflow, "x")


def test_a_run_file_without_the_section_is_refused(run_of):
    with pytest.raises(InputError, match=r"vertex: the run file has no such section; docs/vertex.md says"):
        connect(run_of(), "vertex")
