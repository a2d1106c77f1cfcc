from dataclasses import replace
from datetime import datetime, timedelta, timezone

import google.auth.exceptions
import grpc
import pytest
from fake_backends import sample_job
from fake_backends.vertex import NEXT, PARENT, SETTINGS, START
from google.cloud.aiplatform_v1.types import pipeline_job, schedule
from google.rpc import status_pb2

from detloom.pipelines.backends import vertex_client
from detloom.pipelines.backends.api_errors import ApiError
from detloom.pipelines.backends.compiled_job import parse_job
from detloom.pipelines.backends.vertex_client import VertexBackend, connect_vertex
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.schedule import Schedule

CONSOLE = "https://console.cloud.google.com/vertex-ai/locations/us-central1/pipelines"
KEY = "projects/my-project/locations/us-central1/keyRings/ring/cryptoKeys/key"


@pytest.fixture
def backend(region):
    return VertexBackend(SETTINGS, "cells", region.api())


@pytest.fixture
def job():
    return parse_job(sample_job.vertex_job(), "vertex", "F")


def test_a_run_is_submitted_under_its_own_id(region, backend, job):
    run = backend.submit(job, "cells-1")
    (message,) = region.jobs.values()
    assert message.name == f"{PARENT}/pipelineJobs/cells-1"
    assert (message.display_name, message.runtime_config.gcs_output_directory) == ("cells-1", "gs://bucket/root")
    assert dict(message.labels) == {"tfx_version": "1-16-0"}
    assert (message.service_account, message.network, message.encryption_spec.kms_key_name) == ("", "", "")
    assert (run.run_id, run.state, run.link) == ("cells-1", "pending", f"{CONSOLE}/runs/cells-1?project=my-project")
    assert 30 < region.deadlines[0] < 90  # sent as 60 s; gRPC rounds it and counts on another clock


def test_account_network_key_and_labels_come_from_the_run_file(region, job):
    account, network = "runner@my-project.iam.gserviceaccount.com", "projects/123/global/networks/lab"
    settings = replace(SETTINGS, service_account=account, network=network, encryption_key=KEY, labels={"team": "cells"})
    VertexBackend(settings, "cells", region.api(settings)).submit(job, "cells-1")
    (message,) = region.jobs.values()
    assert (message.service_account, message.network) == (account, network)
    assert message.encryption_spec.kms_key_name == KEY
    assert dict(message.labels) == {"tfx_version": "1-16-0", "team": "cells"}
    region.fail("CreatePipelineJob", grpc.StatusCode.PERMISSION_DENIED, "iam.serviceAccounts.actAs")
    with pytest.raises(ApiError, match=account):
        VertexBackend(settings, "cells", region.api(settings)).submit(job, "cells-2")


def test_a_job_without_a_root_gets_the_root_of_the_run_file_and_an_unknown_field_is_refused(region, backend, job):
    backend.submit(replace(job, runtime_config={}), "cells-1")
    (message,) = region.jobs.values()
    assert message.runtime_config.gcs_output_directory == "gs://bucket/root"
    with pytest.raises(InputError, match=r"PipelineJob .*gcsOutputDirektory"):
        backend.submit(replace(job, runtime_config={"gcsOutputDirektory": "x"}), "cells-2")


def test_the_service_refuses_a_second_run_with_the_same_id(backend, job):
    backend.submit(job, "cells-1")
    with pytest.raises(ApiError, match="submit the run 'cells-1'") as again:
        backend.submit(job, "cells-1")
    assert again.value.kind == "exists"


SIGN_IN = ("`gcloud auth application-default login`", "GOOGLE_APPLICATION_CREDENTIALS")


@pytest.mark.parametrize(
    ("code", "text", "kind", "parts"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, "invalid authentication credentials", "signed out", SIGN_IN),
        (grpc.StatusCode.PERMISSION_DENIED, "Permission denied", "forbidden", ("'Vertex AI User'", "my-project")),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Quota exceeded for tpu_v3", "quota", ("us-central1",)),
        (grpc.StatusCode.INVALID_ARGUMENT, "Invalid image URI", "refused", ()),
        (grpc.StatusCode.INTERNAL, "", "server", ()),
    ],
)
def test_errors_of_the_service_become_one_sentence(region, backend, job, code, text, kind, parts):
    region.fail("CreatePipelineJob", code, text)
    with pytest.raises(ApiError) as refused:
        backend.submit(job, "cells-1")
    assert refused.value.kind == kind
    message = str(refused.value)
    assert message.startswith("Vertex AI in us-central1 (project my-project): could not submit the run 'cells-1': ")
    assert all(part in message for part in (text, *parts))
    assert region.calls == ["CreatePipelineJob"]  # once


def test_an_unreachable_service_is_reported(region, backend):
    region._server.stop(None).wait()
    with pytest.raises(ApiError, match=r"vertex\.region") as away:
        backend.latest_runs(1)
    assert away.value.kind == "unreachable"


def test_the_error_for_missing_credentials_tells_how_to_get_them(monkeypatch):
    def default(**_):
        raise google.auth.exceptions.DefaultCredentialsError("Your default credentials were not found.")

    monkeypatch.setattr(vertex_client.google.auth, "default", default)
    with pytest.raises(ApiError, match=r"sign in: .*credentials were not found.*`gcloud auth application-d"):
        connect_vertex(SETTINGS)


def test_clients_use_the_address_of_the_region(monkeypatch):
    anonymous = google.auth.credentials.AnonymousCredentials()
    monkeypatch.setattr(vertex_client.google.auth, "default", lambda **_: (anonymous, None))
    api = connect_vertex(SETTINGS)
    for client in (api.pipelines, api.schedules):
        assert client.api_endpoint == "us-central1-aiplatform.googleapis.com"


def test_the_latest_runs_of_the_pipeline_are_listed(region, backend):
    region.add_job("cells-1", state="FAILED", end_time=START + timedelta(minutes=9))
    region.add_job("others-1", pipeline="others")
    region.add_job("cells-2", display_name="by hand")
    runs = backend.latest_runs(10)
    assert [(run.run_id, run.name, run.state) for run in runs] == [
        ("cells-2", "by hand", "running"),
        ("cells-1", "cells-1", "failed"),
    ]
    assert (runs[1].started, runs[1].ended) == (START, START + timedelta(minutes=9))
    assert [run.run_id for run in backend.latest_runs(1)] == ["cells-2"]


def add_ended(region, state, *details, **values):
    """Add a run of the sample with these task details."""
    detail = pipeline_job.PipelineJobDetail(task_details=details)
    region.add_job("cells-1", state=state, pipeline_spec=sample_job.SPEC, job_detail=detail, **values)


def detail(name, state, minutes=0, message=""):
    begun = START + timedelta(minutes=minutes)
    ended = None if state == "RUNNING" else begun + timedelta(minutes=5)
    return pipeline_job.PipelineTaskDetail(
        task_name=name,
        state=pipeline_job.PipelineTaskDetail.State[state],
        start_time=begun,
        end_time=ended,
        error=status_pb2.Status(message=message),
    )


def test_a_run_has_the_tasks_of_its_spec(region, backend):
    details = [detail("cells-1", "FAILED"), detail("Gen", "SKIPPED"), detail("training", "FAILED", 5)]
    details += [detail("Trainer", "FAILED", 5, "The replica workerpool0-0 ran out of memory.")]
    add_ended(region, "FAILED", *details, error=status_pb2.Status(message="Task Trainer failed."))
    run = backend.get_run("cells-1")
    assert [(task.name, task.state, task.error) for task in run.tasks] == [
        ("Gen", "cached", ""),
        ("Trainer", "failed", "The replica workerpool0-0 ran out of memory"),
        ("Pusher", "not run", ""),
    ]
    assert run.error == "Task Trainer failed"
    assert run.tasks[1].ended == START + timedelta(minutes=10)
    assert backend.get_run(f"{PARENT}/pipelineJobs/cells-1") == run


def test_a_group_with_a_false_condition_is_skipped(region, backend):
    add_ended(region, "SUCCEEDED", detail("Gen", "SUCCEEDED"), detail("training", "NOT_TRIGGERED"))
    assert [task.state for task in backend.get_run("cells-1").tasks] == ["succeeded", "skipped", "skipped"]


def test_an_unknown_run_is_none_or_an_error(backend):
    assert backend.find_run("cells-9") is None
    with pytest.raises(ApiError, match=r"read the run 'cells-9'.*vertex\.project"):
        backend.get_run("cells-9")


SCHEDULE = Schedule(
    cron="0 3 * * 7", timezone="Europe/Berlin", max_concurrency=3, start="2099-07-01T03:00", end="2099-12-31T00:00"
)


def test_a_schedule_creates_the_same_jobs_as_submit(region, backend, job):
    created = backend.create_schedule(job, SCHEDULE, "nightly")
    (message,) = region.schedules.values()
    assert (message.display_name, message.cron) == ("nightly", "TZ=Europe/Berlin 0 3 * * 7")
    assert message.start_time == datetime(2099, 7, 1, 0, 59, 59, tzinfo=timezone.utc)
    assert message.end_time == datetime(2099, 12, 30, 23, 0, tzinfo=timezone.utc)
    assert (message.max_concurrent_run_count, message.allow_queueing) == (3, False)
    asked = message.create_pipeline_job_request
    assert (asked.parent, asked.pipeline_job_id) == (PARENT, "")
    assert asked.pipeline_job.runtime_config.gcs_output_directory == "gs://bucket/root"
    assert created.schedule_id == "1000"
    assert (created.state, created.next_time) == ("active", NEXT)
    assert created.link == f"{CONSOLE}/schedules/1000?project=my-project"


def test_catch_up_queues_runs_and_a_past_start_is_dropped(region, backend, job):
    backend.create_schedule(job, Schedule(cron="0 3 * * *", catch_up=True, start="2020-01-01"), "nightly")
    (message,) = region.schedules.values()
    assert message.allow_queueing is True
    assert (message.start_time, message.end_time) == (None, None)


def test_schedules_are_paused_resumed_and_deleted(region, backend, job):
    schedule_id = backend.create_schedule(job, SCHEDULE, "nightly").schedule_id
    backend.pause_schedule(schedule_id)
    assert [(each.state, each.next_time) for each in backend.list_schedules()] == [("paused", None)]
    backend.resume_schedule(schedule_id, catch_up=True)
    (message,) = region.schedules.values()
    assert (message.state, message.catch_up) == (schedule.Schedule.State.ACTIVE, True)
    backend.delete_schedule(schedule_id)
    assert backend.list_schedules() == []
    assert region.calls[-2] == "GetOperation"  # it waits until it is deleted
    with pytest.raises(ApiError, match="delete the schedule"):
        backend.delete_schedule(schedule_id)


def test_own_schedules_contain_their_last_run(region, backend, job):
    other = parse_job(sample_job.vertex_job(pipelineInfo={"name": "others"}), "vertex", "F")
    for name, its_job in (("nightly", job), ("others", other), ("weekly", job)):
        backend.create_schedule(its_job, SCHEDULE, name)
    region.add_job("cells-1", schedule_name=f"{PARENT}/schedules/1000", state="FAILED")
    region.add_job("cells-2", schedule_name=f"{PARENT}/schedules/1000", state="SUCCEEDED")
    assert [each.name for each in backend.list_schedules()] == ["weekly", "others", "nightly"]
    weekly, nightly = backend.own_schedules()
    assert (weekly.name, weekly.last_run) == ("weekly", None)
    assert (nightly.name, nightly.last_run.run_id, nightly.last_run.state) == ("nightly", "cells-2", "succeeded")
