from datetime import datetime, timedelta, timezone

import kfp_server_api
from fake_backends import sample_job

from detloom.pipelines.backends.kubeflow_tasks import known_tasks, moment
from detloom.pipelines.backends.run_status import planned_tasks

START = datetime(2026, 1, 31, 3, 0, tzinfo=timezone.utc)
NEVER = datetime(1, 1, 1, tzinfo=timezone.utc)


def node(name, state, start=0, end=None):
    """Minutes after START."""
    return kfp_server_api.V2beta1PipelineTaskDetail(
        display_name=name,
        state=state,
        start_time=START + timedelta(minutes=start),
        end_time=NEVER if end is None else START + timedelta(minutes=end),
    )


def known(*nodes):
    run = kfp_server_api.V2beta1Run(run_details=kfp_server_api.V2beta1RunDetails(task_details=list(nodes)))
    return known_tasks(run, planned_tasks(sample_job.SPEC), lambda detail: f"error of {detail.display_name}")


def test_a_task_is_its_driver_and_its_container():
    found = known(
        node("root", "RUNNING"),
        node("Gen-driver", "SUCCEEDED", 1, 2),
        node("Gen", "SUCCEEDED", 2, 12),
        node("executor", "SUCCEEDED", 3, 12),
    )
    assert set(found) == {"Gen"}
    assert (found["Gen"].state, found["Gen"].error) == ("succeeded", "")
    assert (found["Gen"].started, found["Gen"].ended) == (START + timedelta(minutes=1), START + timedelta(minutes=12))


def test_a_task_whose_driver_is_done_is_running():
    found = known(node("Gen-driver", "SUCCEEDED", 1, 2))
    assert (found["Gen"].state, found["Gen"].ended) == ("running", None)
    assert known(node("Gen-driver", "PENDING", 1))["Gen"].state == "pending"


def test_a_failure_is_that_of_the_container_or_of_the_driver():
    assert known(node("Gen-driver", "SUCCEEDED", 1, 2), node("Gen", "FAILED", 2, 3))["Gen"].error == "error of Gen"
    found = known(node("Gen-driver", "FAILED", 1, 2), node("Gen", "RUNTIME_STATE_UNSPECIFIED", 2))
    assert (found["Gen"].state, found["Gen"].error) == ("failed", "error of Gen-driver")


def test_a_group_whose_condition_was_false_is_skipped():
    found = known(node("training-driver", "SUCCEEDED", 1, 2), node("training", "SKIPPED", 2, 2))
    assert found["training"].state == "skipped"


def test_tasks_that_were_left_out_after_a_failure_are_not_known():
    assert known(node("training", "RUNTIME_STATE_UNSPECIFIED")) == {}
    assert known_tasks(kfp_server_api.V2beta1Run(), planned_tasks(sample_job.SPEC), str) == {}


def test_the_year_1_and_1970_are_no_times():
    assert moment(NEVER) is None
    assert moment(datetime(1970, 1, 1, tzinfo=timezone.utc)) is None
    assert moment(datetime(2026, 1, 31, 3, 0)) == START
