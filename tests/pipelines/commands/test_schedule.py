"""Test `detloom schedule` from the command line to servers with the real APIs."""

import json

import pytest
from click.testing import CliRunner
from fake_backends import sample_job

from detloom.pipelines.backends import vertex_client
from detloom.pipelines.cli import cli
from detloom.schemas.errors import InputError

NIGHTLY = {"cron": "0 3 * * *"}
VERTEX = {"project": "my-project", "region": "us-central1", "image": "x/d:1", "pipeline_root": "gs://bucket/root"}


def write_run(path, **sections):
    data = {"path": "embedded:digits", "split_by_ratio": {}}
    run = {
        "name": "cells",
        "push_to": "gs://models/cells",
        "data": data,
        "train": {"batch_size": 4, "num_steps": 8},
        **sections,
    }
    path.write_text(json.dumps(run))
    return path


@pytest.fixture
def kubeflow(cluster, tmp_path):
    (tmp_path / "job").write_text(sample_job.kubeflow_job())
    return write_run(tmp_path / "run.yaml", kubeflow={"host": cluster.host, "image": "x/d:1"}, schedule=NIGHTLY)


@pytest.fixture
def vertex(region, tmp_path, monkeypatch):
    monkeypatch.setattr(vertex_client, "connect_vertex", lambda settings: region.api(settings))
    (tmp_path / "job").write_text(sample_job.vertex_job())
    schedule = {**NIGHTLY, "timezone": "Europe/Berlin", "catch_up": True, "caching": False}
    return write_run(tmp_path / "run.yaml", vertex=VERTEX, schedule=schedule)


def schedule(command, run_file, *arguments):
    return CliRunner().invoke(cli, ["schedule", command, str(run_file), *map(str, arguments)])


def create(run_file, *arguments):
    return schedule("create", run_file, "--job", run_file.with_name("job"), *arguments)


def test_help_mentions_the_timer_for_one_machine():
    result = CliRunner().invoke(cli, ["schedule", "--help"])
    assert "`detloom timer`" in result.output


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


def test_with_caching_the_compiled_job_is_not_changed(cluster, kubeflow):
    create(kubeflow)
    tasks = cluster.recurring[0].pipeline_spec["pipeline_spec"]["root"]["dag"]["tasks"]
    assert tasks["Gen"]["cachingOptions"] == {"enableCache": True}
    assert tasks["training"].get("cachingOptions") is None


def test_creating_a_schedule_again_requires_replace(region, vertex):
    create(vertex)
    again = create(vertex)
    assert isinstance(again.exception, InputError)
    assert "'cells'" in str(again.exception)
    assert "`--replace`" in str(again.exception)
    assert create(vertex, "--replace").exit_code == 0
    assert [each.name.rpartition("/")[2] for each in region.schedules.values()] == ["1001"]
    assert create(vertex, "--name", "cells by day").exit_code == 0
    assert [each["name"] for each in json.loads(schedule("list", vertex, "--json").output)] == ["cells by day", "cells"]


def test_replacing_a_schedule_keeps_its_running_run(cluster, kubeflow):
    create(kubeflow)
    cluster.add_run("cells-1", recurring_run_id=cluster.recurring[0].recurring_run_id, state="RUNNING")
    assert create(kubeflow, "--replace").exit_code == 0
    assert (len(cluster.recurring), cluster.ended_runs) == (1, [])


def test_schedules_of_other_pipelines_are_listed_on_request(cluster, kubeflow):
    create(kubeflow)
    other = write_run(kubeflow.with_name("other.yaml"), name="dogs", kubeflow={"host": cluster.host, "image": "x/d:1"})
    assert schedule("list", other).output == "No schedules of 'dogs' yet.\n"
    assert [each["name"] for each in json.loads(schedule("list", other, "--all", "--json").output)] == ["cells"]


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("pause", ("weekly",), "'weekly'"),
        ("create", ("--set", "schedule=null"), "schedule: the section is missing; it needs cron"),
        ("create", ("--name", "x" * 129), "--name: got .*, allowed: at most 128 printable characters"),
        ("create", ("--set", "schedule.timezone=Asia/Tokyo"), "schedule.timezone: got 'Asia/Tokyo', .*'UTC'"),
    ],
)
def test_mistakes_are_reported_in_one_sentence(cluster, kubeflow, command, arguments, message):
    extra = ("--job", kubeflow.with_name("job")) if command == "create" else ()
    result = schedule(command, kubeflow, *arguments, *extra)
    assert isinstance(result.exception, InputError), result.output
    with pytest.raises(InputError, match=message):
        raise result.exception
    assert cluster.recurring == []
