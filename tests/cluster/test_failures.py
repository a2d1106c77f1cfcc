"""Runs that fail: the cause reaches the user, the exit handler runs, and runs do not disturb each other."""

import pytest
from cluster_access.helper_pod import MOUNT
from cluster_access.runs import overlap, states_of, task_in

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
EXAMPLE_GEN = "DetectionExampleGen"
LOST = f"{MOUNT}/lost"


@pytest.fixture(scope="module")
def failed(small_pipeline):
    """Start two runs at the same time, and return their pipelines and final states: one without data, one too slow."""
    pipelines = {
        "without data": small_pipeline("lost", f"data.path={LOST}"),
        "too slow": small_pipeline("slow", f"nodes=[{{node: {EXAMPLE_GEN}, time_limit_minutes: 0.02}}]"),
    }
    ids = {name: pipeline.submit()["run_id"] for name, pipeline in pipelines.items()}
    return {name: (pipeline, pipeline.wait(ids[name])) for name, pipeline in pipelines.items()}


def test_a_failed_task_fails_the_run_and_the_exit_handler_runs(failed):
    _, status = failed["without data"]
    states = states_of(status)
    assert (status["state"], states[EXAMPLE_GEN]) == ("failed", "failed")
    assert states["FailureNotifier"] == "succeeded"
    assert states["Trainer"] == "not run"


def test_the_cause_is_in_the_status(failed):
    """Needs nothing else; once the pod is gone, a cluster that archives logs."""
    _, status = failed["without data"]
    assert LOST in task_in(status, EXAMPLE_GEN)["error"]


def test_waiting_for_a_failed_run_prints_the_cause_and_fails(failed):
    """Needs nothing else; once the pod is gone, a cluster that archives logs."""
    pipeline, status = failed["without data"]
    printed = pipeline.command("status", status["run_id"], "--wait", code=1)
    (line,) = [line for line in printed.splitlines() if line.startswith(f"{EXAMPLE_GEN}: ")]
    assert LOST in line


def test_a_failed_run_sends_one_notification(failed, helper):
    """Needs nothing else."""
    _, status = failed["without data"]
    (message,) = helper.messages(status["run_id"])
    assert message["event"] == "failed"
    assert message["links"]


def test_a_task_that_exceeds_its_time_limit_fails_with_that_cause(failed, helper):
    _, status = failed["too slow"]
    assert status["state"] == "failed"
    assert "time" in task_in(status, EXAMPLE_GEN)["error"]
    (message,) = helper.messages(status["run_id"])
    assert message["event"] == "failed"


def test_runs_at_the_same_time_are_separate(failed):
    """Needs room for two small pods at a time."""
    (first, one), (second, other) = failed.values()
    assert overlap(one, other)
    assert [run["run_id"] for run in first.runs()] == [one["run_id"]]
    assert [run["run_id"] for run in second.runs()] == [other["run_id"]]
    assert task_in(one, EXAMPLE_GEN)["error"] != task_in(other, EXAMPLE_GEN)["error"]
