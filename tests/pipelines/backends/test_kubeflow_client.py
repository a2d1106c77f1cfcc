from datetime import datetime, timedelta, timezone

import kfp_server_api
import pytest
from fake_backends import sample_job
from fake_backends.kubeflow import START, Answer, error

from detloom.pipelines.backends import kubeflow_client
from detloom.pipelines.backends.api_errors import ApiError
from detloom.pipelines.backends.compiled_job import parse_job
from detloom.pipelines.backends.kubeflow_api import connect_kubeflow
from detloom.pipelines.backends.kubeflow_client import (
    KubeflowBackend,
    cluster_cron,
    known_tasks,
    utc_time,
)
from detloom.pipelines.backends.run_status import planned_tasks, start_of
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.kubeflow import Kubeflow
from detloom.schemas.run_file.schedule import Schedule, parse_cron


def backend_of(cluster, **changes):
    settings = Kubeflow(host=cluster.host, image="x/detloom:1", **changes)
    return KubeflowBackend(settings, "cells", connect_kubeflow(settings))


@pytest.fixture
def backend(cluster):
    return backend_of(cluster)


@pytest.fixture
def job():
    return parse_job(sample_job.kubeflow_job(), "kubeflow", "F")


def test_the_experiment_of_runs_is_created_once(cluster, job):
    backend = backend_of(
        cluster,
        experiment="nightly",
        namespace="team",
        pipeline_root="minio://mlpipeline/cells",
        service_account="trainer",
    )
    first = backend.submit(job, "cells-1")
    link = f"{cluster.host}/#/runs/details/{first.run_id}"
    assert (first.name, first.state, first.link) == ("cells-1", "pending", link)
    backend.submit(job, "cells-2")
    (experiment,) = cluster.experiments
    assert (experiment.display_name, experiment.namespace) == ("nightly", "team")
    run = cluster.runs[0]
    assert run.service_account == "trainer"
    assert (run.experiment_id, run.runtime_config.pipeline_root) == (
        experiment.experiment_id,
        "minio://mlpipeline/cells",
    )
    assert run.pipeline_spec["pipeline_spec"]["pipelineInfo"] == {"name": "cells"}
    assert run.pipeline_spec["platform_spec"] == sample_job.PLATFORM


def test_without_a_platform_only_the_spec_is_sent(cluster, backend):
    backend.submit(parse_job(sample_job.kubeflow_job(platform=False), "kubeflow", "F"), "cells-1")
    assert cluster.runs[0].pipeline_spec["pipelineInfo"] == {"name": "cells"}
    assert cluster.runs[0].runtime_config.pipeline_root is None


def test_a_run_is_found_by_its_name(cluster, backend):
    assert (backend.find_run("cells-1"), backend.latest_runs(10)) == (None, [])  # there is no experiment yet
    run = cluster.add_run("cells-1")
    found = backend.find_run("cells-1")
    assert (found.run_id, found.started) == (run.run_id, START)
    assert backend.find_run("cells") is None


def test_all_runs_of_the_pipeline_are_listed_newest_first(cluster, backend):
    cluster.add_run("cells-1", state="SUCCEEDED", finished_at=START + timedelta(minutes=30))
    cluster.add_run("others-1", pipeline="others")
    cluster.add_run("nightly-x7-1-99", recurring_run_id="r")  # the controller's naming of scheduled runs
    cluster.add_run("cells-from-the-page", pipeline_spec=None)
    cluster.add_run("others-from-the-page", pipeline_spec=None)
    cluster.add_run("cells-2", pipeline_spec={"pipeline_spec": {"pipelineInfo": {"name": "cells"}}})
    runs = backend.latest_runs(10)
    assert [run.name for run in runs] == ["cells-2", "cells-from-the-page", "nightly-x7-1-99", "cells-1"]
    assert (runs[3].state, runs[3].ended) == ("succeeded", START + timedelta(minutes=30))
    assert runs[0].ended is None
    assert [run.name for run in backend.latest_runs(1)] == ["cells-2"]


def test_further_pages_are_read_only_if_needed(cluster, backend):
    for number in range(120):
        cluster.add_run(f"cells-{number}", pipeline="cells" if number < 5 else "others")
    assert [run.name for run in backend.latest_runs(2)] == ["cells-4", "cells-3"]
    assert cluster.count("GET", "/runs") == 3  # of fifty runs each
    cluster.requests.clear()
    assert len(backend.latest_runs(5)) == 5
    assert cluster.count("GET", "/runs") == 3


NEVER = datetime(1, 1, 1, tzinfo=timezone.utc)


def moment(minutes):
    return START + timedelta(minutes=minutes)


def task(name, state, start=0, end=None):
    """Return a task detail; times are minutes after START."""
    return kfp_server_api.V2beta1PipelineTaskDetail(
        display_name=name, state=state, start_time=moment(start), end_time=NEVER if end is None else moment(end)
    )


def status(message):
    """Return a google.rpc.Status, whose class name depends on the version."""
    return getattr(kfp_server_api, kfp_server_api.V2beta1Run.openapi_types["error"])(message=message)


def test_a_run_has_the_tasks_of_its_spec(cluster, backend):
    ended = {"Gen-driver": "SUCCEEDED", "Gen": "SUCCEEDED", "training-driver": "SUCCEEDED"}
    ended |= {"training": "RUNNING", "Trainer-driver": "SUCCEEDED", "Trainer": "FAILED"}
    details = [task(name, state) for name, state in ended.items()]
    run = cluster.add_run(
        "cells-1",
        pipeline_spec={"pipeline_spec": sample_job.SPEC},
        run_details=kfp_server_api.V2beta1RunDetails(task_details=details),
        state="FAILED",
        state_history=[
            kfp_server_api.V2beta1RuntimeStatus(state="PENDING"),
            kfp_server_api.V2beta1RuntimeStatus(state="FAILED", error=status("child 'Trainer' failed")),
        ],
    )
    for name in (run.run_id, "cells-1"):
        found = backend.get_run(name)
        assert [(task.name, task.state) for task in found.tasks] == [
            ("Gen", "succeeded"),
            ("Trainer", "failed"),
            ("Pusher", "not run"),
        ]
        assert (found.state, found.error, found.tasks[1].error) == ("failed", "child 'Trainer' failed", "")


def failed_run(cluster, **values):
    """Add a run as KFP 2.17 shows it: a failed Trainer, each entry with its attempts because of Argo's defaults."""
    details = [task(name, "SUCCEEDED") for name in ("Trainer-driver", "Trainer-driver(0)")]
    details += [task(name, "FAILED", 1) for name in ("Trainer(0)", "Trainer", "executor", "executor(0)")]
    for detail, node_id in zip(details[2:5], ("w-3", "w-2", "w-4"), strict=True):
        detail.child_tasks = [kfp_server_api.PipelineTaskDetailChildTask(pod_name=node_id)]
    details = kfp_server_api.V2beta1RunDetails(task_details=details)
    source = {"pipeline_spec": sample_job.SPEC}
    return cluster.add_run("cells-1", state="FAILED", pipeline_spec=source, run_details=details, **values)


LOG = """Trainer on kubeflow: detloom 0.1.0
step 1
error: train.fine_tune_checkpoint: got '/data/x', which does not exist.
time="2026-01-31T03:00:00Z" level=info msg="sub-process exited" argo=true error="<nil>"
I0131 03:00:00.1 17 launcher_v2.go:152] publish success.
F0131 03:00:00.2 17 main.go:50] failed to execute component: exit status 1
Error: exit status 1
"""


def trainer_of(backend, run):
    return next(task for task in backend.get_run(run.run_id).tasks if task.name == "Trainer")


def test_a_failed_task_has_the_cause_from_its_log(cluster, backend):
    run = failed_run(cluster)
    assert trainer_of(backend, run).error == ""  # no log yet
    cluster.logs["w-4"] = LOG
    cause = "train.fine_tune_checkpoint: got '/data/x', which does not exist"
    assert (trainer_of(backend, run).state, trainer_of(backend, run).error) == ("failed", cause)
    read = cluster.count("GET", "/apis/v1alpha1")
    assert trainer_of(backend, run).error == cause
    assert cluster.count("GET", "/apis/v1alpha1") == read  # it is read once


def test_the_user_interface_gives_archived_logs_only(cluster, backend):
    """Its server passes on requests to /apis/v1beta1 and /apis/v2beta1 (frontend/server/app.ts)."""
    run = failed_run(cluster)
    cluster.logs["w-4"] = LOG
    cluster.answer_next("GET", f"/apis/v1alpha1/runs/{run.run_id}/nodes/w-4/log", error(404, "Cannot GET"))
    assert trainer_of(backend, run).error.startswith("train.fine_tune_checkpoint: got")


BODIES = [b"", b"<html>", b"null", b"[]", b"{}", b'{"data": 5}', b'{"data": "c3RlcCAx', b'{"data": ""}']


@pytest.mark.parametrize("archived", [*(Answer(body=body) for body in BODIES), error(500, "no archive")])
def test_a_log_that_cannot_be_read_leaves_the_cause_empty(cluster, backend, archived):
    run = failed_run(cluster)
    for node_id in ("w-4", "w-2", "w-3"):
        cluster.answer_next("GET", f"/apis/v1alpha1/runs/{run.run_id}/nodes/{node_id}/log", error(404, "Cannot GET"))
        cluster.answer_next("GET", f"/runs/{run.run_id}/nodes/{node_id}/artifacts/main-logs:read", archived)
    assert trainer_of(backend, run).error == ""


def test_a_run_that_failed_outside_its_tasks_says_where_the_cause_is(cluster, backend):
    """Seen on a cluster whose bucket did not exist: all entries but those of drivers are missing, without a message."""
    details = kfp_server_api.V2beta1RunDetails(task_details=[task("root-driver", "FAILED")])
    source = {"pipeline_spec": sample_job.SPEC}
    run = cluster.add_run("cells-1", state="FAILED", pipeline_spec=source, run_details=details)
    error = backend.get_run(run.run_id).error
    assert f"kubectl describe workflow -n kubeflow -l pipeline/runid={run.run_id}" in error
    assert backend.get_run(failed_run(cluster).run_id).error == ""  # the failed task has the cause


def test_a_terminated_run_was_cancelled(cluster, backend):
    """Kubeflow's states of a run that `:terminate` ended: CANCELING, then FAILED."""
    states = [kfp_server_api.V2beta1RuntimeStatus(state=each) for each in ("RUNNING", "CANCELING", "FAILED")]
    run = cluster.add_run("cells-1", state="FAILED", state_history=states)
    assert backend.get_run(run.run_id).state == "cancelled"
    run.state, run.state_history = "CANCELING", states[:2]
    assert backend.get_run(run.run_id).state == "running"


def test_an_unknown_run_is_reported(backend):
    with pytest.raises(ApiError, match=r"read the run 'cells-9'") as e:
        backend.get_run("cells-9")
    assert e.value.kind == "not found"


def test_a_run_id_cannot_address_another_path(cluster, backend):
    with pytest.raises(ApiError):
        backend.get_run("../experiments")
    assert cluster.count("GET", "/experiments") == 1  # to search for a run of that name


SCHEDULE = Schedule(cron="0 3 * * 7", max_concurrency=2, start="2099-01-31T03:00", end="2099-12-31T00:00")


def test_a_schedule_is_a_recurring_run(cluster, backend, job):
    created = backend.create_schedule(job, SCHEDULE, "nightly")
    (recurring,) = cluster.recurring
    times = recurring.trigger.cron_schedule
    assert times.cron == "0 0 3 * * 0"
    assert times.start_time == datetime(2099, 1, 31, 2, 59, 59, tzinfo=timezone.utc)
    assert times.end_time == datetime(2099, 12, 31, tzinfo=timezone.utc)
    assert (recurring.no_catchup, int(recurring.max_concurrency), recurring.mode) == (True, 2, "ENABLE")
    assert recurring.pipeline_spec["pipeline_spec"]["pipelineInfo"] == {"name": "cells"}
    assert (created.schedule_id, created.name, created.state) == (recurring.recurring_run_id, "nightly", "active")
    assert created.link == f"{cluster.host}/#/recurringrun/details/{created.schedule_id}"


def test_catch_up_is_set_when_the_schedule_is_created(cluster, backend, job):
    backend.create_schedule(job, Schedule(cron="0 3 * * *", catch_up=True), "nightly")
    (recurring,) = cluster.recurring
    assert recurring.no_catchup is False
    assert (recurring.trigger.cron_schedule.start_time, recurring.trigger.cron_schedule.end_time) == (None, None)


def test_another_time_zone_or_more_concurrent_runs_than_kubeflow_allows_are_refused(cluster, backend, job):
    schedule = Schedule(cron="0 3 * * *", timezone="Europe/Berlin")
    with pytest.raises(InputError, match=r"^schedule\.timezone: got 'Europe/Berlin', .*'UTC'"):
        backend.create_schedule(job, schedule, "nightly")
    with pytest.raises(InputError, match=r"schedule\.max_concurrency: got 11, allowed on Kubeflow: 1 to 10"):
        backend.create_schedule(job, Schedule(cron="0 3 * * *", max_concurrency=11), "nightly")
    assert cluster.requests == []
    backend_of(cluster, schedule_timezone="Europe/Berlin").create_schedule(job, schedule, "nightly")
    assert cluster.recurring[0].trigger.cron_schedule.cron == "0 0 3 * * *"


def test_schedules_are_paused_resumed_and_deleted(cluster, backend, job):
    schedule_id = backend.create_schedule(job, Schedule(cron="0 3 * * *"), "nightly").schedule_id
    backend.pause_schedule(schedule_id)
    (paused,) = backend.list_schedules()
    assert paused.state == "paused"
    backend.resume_schedule(schedule_id, catch_up=True)
    assert backend.list_schedules()[0].state == "active"
    backend.delete_schedule(schedule_id)
    assert backend.list_schedules() == []
    with pytest.raises(ApiError, match="pause the schedule"):
        backend.pause_schedule(schedule_id)


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "CANCELING"])
def test_deleting_a_schedule_keeps_its_running_run(cluster, backend, job, state):
    schedule_id = backend.create_schedule(job, Schedule(cron="0 3 * * *"), "nightly").schedule_id
    cluster.add_run("cells-1", recurring_run_id=schedule_id, state=state)
    backend.delete_schedule(schedule_id)
    assert (cluster.recurring, cluster.ended_runs) == ([], [])


def test_a_server_that_would_end_the_run_gets_no_request_to_delete_the_schedule(cluster, backend, job):
    cluster.knows_propagation = False
    schedule_id = backend.create_schedule(job, Schedule(cron="0 3 * * *"), "nightly").schedule_id
    run = cluster.add_run("cells-1", recurring_run_id=schedule_id, state="RUNNING")
    with pytest.raises(InputError, match=rf"{run.run_id} has not ended.*paused"):
        backend.delete_schedule(schedule_id)
    assert (cluster.recurring[0].status, cluster.ended_runs) == ("DISABLED", [])
    run.state = "SUCCEEDED"
    backend.delete_schedule(schedule_id)
    assert cluster.recurring == []


def test_all_pages_of_schedules_are_read(cluster, backend, job, monkeypatch):
    monkeypatch.setattr(kubeflow_client, "_PAGE_SIZE", 1)
    for number in range(22):
        backend.create_schedule(job, Schedule(cron="0 3 * * *"), f"cells-{number}")
    assert [each.name for each in backend.list_schedules()] == [f"cells-{number}" for number in reversed(range(22))]


def test_repeated_page_token_ends_the_list(cluster, backend, job):
    backend.create_schedule(job, Schedule(cron="0 3 * * *"), "nightly")
    page = Answer(body=b'{"recurringRuns": [], "next_page_token": "again"}')
    for _ in range(2):
        cluster.answer_next("GET", "/recurringruns", page)
    assert backend.list_schedules() == []


def test_own_schedules_contain_their_last_run(cluster, backend, job):
    backend.create_schedule(job, Schedule(cron="0 3 * * *"), "nightly")
    backend.create_schedule(job, Schedule(cron="0 5 * * *"), "weekly")
    other = parse_job(sample_job.kubeflow_job(pipelineInfo={"name": "others"}), "kubeflow", "F")
    backend.create_schedule(other, Schedule(cron="0 4 * * *"), "others")
    nightly = cluster.recurring[0].recurring_run_id
    cluster.add_run("old", recurring_run_id=nightly, state="FAILED")
    cluster.add_run("new", recurring_run_id=nightly, state="SUCCEEDED")
    cluster.add_run("by-hand")
    assert [each.name for each in backend.list_schedules()] == ["others", "weekly", "nightly"]
    weekly, found = backend.own_schedules()
    assert (weekly.name, weekly.last_run) == ("weekly", None)
    assert (found.name, found.last_run.name, found.last_run.state) == ("nightly", "new", "succeeded")


def test_a_schedule_with_a_past_end_is_completed(cluster, backend, job):
    backend.create_schedule(job, Schedule(cron="0 3 * * *", end="2020-01-01"), "nightly")
    assert [each.state for each in backend.list_schedules()] == ["completed"]


def test_a_response_without_fields_does_not_crash(cluster, backend):
    cluster.add_run("cells-1")
    cluster.answer_next("GET", "/runs", Answer(body=b'{"runs": [{"run_id": "a"}]}'))
    assert backend.latest_runs(3) == []  # its pipeline is unknown


def known(*nodes):
    run = kfp_server_api.V2beta1Run(run_details=kfp_server_api.V2beta1RunDetails(task_details=list(nodes)))
    return known_tasks(run, planned_tasks(sample_job.SPEC), lambda detail: f"error of {detail.display_name}")


DRIVER = task("Gen-driver", "SUCCEEDED", 1, 2)
ATTEMPTS = (DRIVER, task("Gen", "RUNNING", 2), task("Gen(0)", "FAILED", 2, 4), task("Gen(1)", "RUNNING", 5))


@pytest.mark.parametrize(
    ("nodes", "state", "ended", "error"),
    [
        ([DRIVER], "running", None, ""),
        ([task("Gen-driver", "PENDING", 1)], "pending", None, ""),
        ([DRIVER, task("Gen", "SUCCEEDED", 2, 12), task("executor", "SUCCEEDED", 3, 12)], "succeeded", 12, ""),
        (ATTEMPTS, "running", None, ""),
        ([DRIVER, task("Gen(0)", "FAILED", 2, 4), task("Gen(1)", "SUCCEEDED", 5, 6)], "succeeded", 6, ""),
        # seen on a cluster: the container of a cached task was not run
        ([DRIVER, task("Gen(0)", "SUCCEEDED", 2, 2), task("Gen", "SUCCEEDED", 2, 2)], "cached", 2, ""),
        ([DRIVER, task("Gen", "FAILED", 2, 3)], "failed", 3, "error of Gen"),
        (
            [task("Gen-driver", "FAILED", 1, 2), task("Gen", "RUNTIME_STATE_UNSPECIFIED", 2)],
            "failed",
            2,
            "error of Gen-driver",
        ),
    ],
)
def test_the_nodes_of_driver_container_and_attempts_make_one_task(nodes, state, ended, error):
    found = known(task("root", "RUNNING"), *nodes)
    assert set(found) == {"Gen"}
    assert (found["Gen"].state, found["Gen"].error) == (state, error)
    assert (found["Gen"].started, found["Gen"].ended) == (moment(1), None if ended is None else moment(ended))


def test_a_group_with_a_false_condition_is_skipped_and_after_a_failure_it_has_no_status():
    skipped = known(task("training-driver", "SUCCEEDED", 1, 2), task("training", "SKIPPED", 2, 2))
    assert skipped["training"].state == "skipped"
    assert known(task("training", "RUNTIME_STATE_UNSPECIFIED")) == {}
    assert known_tasks(kfp_server_api.V2beta1Run(), planned_tasks(sample_job.SPEC), str) == {}


def test_the_years_1_and_1970_mean_a_missing_time():
    assert utc_time(NEVER) is None
    assert utc_time(datetime(1970, 1, 1, tzinfo=timezone.utc)) is None
    assert utc_time(datetime(2026, 1, 31, 3, 0)) == START


@pytest.mark.parametrize(
    ("cron", "six"),
    [
        ("0 3 * * *", "0 0 3 * * *"),
        ("*/15 1-5 1,15 JAN mon-fri", "0 */15 1-5 1,15 JAN mon-fri"),
        ("0 3 * * 7", "0 0 3 * * 0"),
        ("0 3 * * 5-7", "0 0 3 * * 0,5,6"),
        ("0 3 1-7 * */7", "0 0 3 1-7 * */7"),  # only Sundays in the first seven days
        ("0 3 1-7 * */2,7", "0 0 3 1-7 * */2,0"),
        ("0 3 1-7 * */7,5-7", "0 0 3 1-7 * */7,0,5,6"),
        ("0 3 1-7 * 5,*/7", "0 0 3 1-7 * 0,5"),  # not a star for cron, because it is not first: either field may match
        ("0 3 1-7 * 1,*/2", "0 0 3 1-7 * 0,1,2,4,6"),
    ],
)
def test_seconds_come_first_sunday_is_0_and_a_star_keeps_its_meaning(cron, six):
    assert cluster_cron(cron) == six
    ours, theirs = parse_cron(cron), parse_cron(six.partition(" ")[2])
    assert (ours.weekdays, ours.any_weekday) == (theirs.weekdays, theirs.any_weekday)


def test_a_start_in_the_past_is_dropped_to_avoid_catching_up():
    assert start_of(Schedule(cron="0 3 * * *", start="2020-01-01")) is None
