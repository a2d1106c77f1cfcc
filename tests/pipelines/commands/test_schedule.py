"""Test `detloom schedule` from the command line to servers with the real APIs."""

import json

import pytest
from command_line import detloom_command, sentence
from fake_backends import sample_job

from detloom.pipelines.backends import vertex_client

NIGHTLY = {"cron": "0 3 * * *"}
VERTEX = {"project": "my-project", "region": "us-central1", "image": "x/d:1", "pipeline_root": "gs://bucket/root"}


@pytest.fixture
def kubeflow(cluster, write_run):
    section = {"host": cluster.host, "image": "x/d:1"}
    return write_run(job=sample_job.kubeflow_job(), kubeflow=section, schedule=NIGHTLY)


@pytest.fixture
def vertex(region, write_run, monkeypatch):
    monkeypatch.setattr(vertex_client, "connect_vertex", lambda settings: region.api(settings))
    schedule = {**NIGHTLY, "timezone": "Europe/Berlin", "catch_up": True, "caching": False}
    return write_run(job=sample_job.vertex_job(), vertex=VERTEX, schedule=schedule)


def schedule(command, run_file, *arguments):
    return detloom_command("schedule", command, run_file, *arguments)


def create(run_file, *arguments):
    return schedule("create", run_file, "--job", run_file.with_name("job"), *arguments)


def test_a_schedule_is_created_listed_paused_resumed_and_deleted_on_kubeflow(cluster, kubeflow):
    assert schedule("list", kubeflow).output == "No schedules of 'cells' yet.\n"
    created = create(kubeflow)
    (recurring,) = cluster.recurring
    schedule_id = recurring.recurring_run_id
    assert created.output.splitlines() == [
        f"Created the schedule 'cells' on Kubeflow Pipelines: {schedule_id}",
        f"  {cluster.host}/#/recurringrun/details/{schedule_id}",
        f"Next: detloom schedule list {kubeflow} --runner kubeflow",
    ]
    assert recurring.trigger.cron_schedule.cron == "0 0 3 * * *"
    assert "cells  active  0 0 3 * * *" in schedule("list", kubeflow).output
    assert schedule("pause", kubeflow).output == f"Paused the schedule 'cells' ({schedule_id}).\n"
    assert recurring.status == "DISABLED"
    assert schedule("resume", kubeflow, schedule_id).output == f"Resumed the schedule 'cells' ({schedule_id}).\n"
    assert recurring.status == "ENABLED"
    assert schedule("delete", kubeflow, "cells").output == f"Deleted the schedule 'cells' ({schedule_id}).\n"
    assert cluster.recurring == []


def test_a_schedule_on_vertex_follows_the_run_file(region, vertex):
    assert create(vertex).output.startswith("Created the schedule 'cells' on Vertex AI: 1000\n")
    (message,) = region.schedules.values()
    assert (message.cron, message.allow_queueing) == ("TZ=Europe/Berlin 0 3 * * *", True)
    tasks = message.create_pipeline_job_request.pipeline_job.pipeline_spec["root"]["dag"]["tasks"]
    assert tasks["Gen"]["cachingOptions"]["enableCache"] is False
    schedule("pause", vertex)
    assert schedule("resume", vertex).exit_code == 0
    assert message.catch_up is True
    assert schedule("delete", vertex).exit_code == 0
    assert region.schedules == {}


def test_creating_a_schedule_again_requires_replace(region, vertex):
    create(vertex)
    refusal = sentence(create(vertex))
    assert "'cells'" in refusal
    assert "--replace" in refusal
    assert create(vertex, "--replace").exit_code == 0
    assert [each.name.rpartition("/")[2] for each in region.schedules.values()] == ["1001"]
    assert create(vertex, "--name", "cells by day").exit_code == 0
    assert [each["name"] for each in json.loads(schedule("list", vertex, "--json").output)] == ["cells by day", "cells"]


def test_schedules_of_other_pipelines_are_listed_on_request(cluster, kubeflow):
    create(kubeflow)
    other = kubeflow.with_name("other.yaml")
    other.write_text(kubeflow.read_text().replace('"cells"', '"dogs"'))
    assert schedule("list", other).output == "No schedules of 'dogs' yet.\n"
    assert [each["name"] for each in json.loads(schedule("list", other, "--all", "--json").output)] == ["cells"]
