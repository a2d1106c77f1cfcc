"""Run the demo again without a reason to train: by command with the cache, and by a schedule that is deleted meanwhile.

The schedule starts a run every minute, at most one at a time.
"""

import pytest
from cluster_access.pods import wait_for
from cluster_access.runs import ENDED, states_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]
EVERY_MINUTE = "schedule={cron: '* * * * *'}"
NOT_TRAINED = ("Trainer", "DetectionEvaluator", "Pusher", "Notifier", "TrainingRecord", "ModelCard")


@pytest.fixture(scope="module")
def second_run(demo_run, demo_pipeline):
    """Return the status of a run with the same data, settings and code as the demo's first."""
    assert demo_run["state"] == "succeeded"
    return demo_pipeline.submit_and_wait()


def test_nothing_is_trained_without_a_reason(second_run, demo_pipeline, helper):
    states = states_of(second_run)
    assert second_run["state"] == "succeeded"
    assert {states[task] for task in NOT_TRAINED} == {"skipped"}
    assert states["SkipNotifier"] == "succeeded"
    files = helper.files_under(demo_pipeline.push_to)
    assert len([file for file in files if file.endswith("/saved_model.pb")]) == 1
    (message,) = helper.messages(second_run["run_id"])
    assert message["event"] == "skipped"


def test_a_task_whose_inputs_have_not_changed_comes_from_the_cache(second_run):
    """Needs nothing else; the cache is on in an installation as it comes."""
    states = states_of(second_run)
    assert states["ImportSchemaGen"] == "cached"
    assert states["DetectionExampleGen"] == "succeeded"  # it is never cached, because the data may have changed


@pytest.fixture(scope="module")
def scheduled(demo_run, demo_pipeline, helper):
    """Create a schedule, delete it during its second run, and return the status of its runs, oldest first."""
    pipeline = demo_pipeline.changed(EVERY_MINUTE)
    known = {run["run_id"] for run in pipeline.runs()}

    def new_runs():
        return [run for run in reversed(pipeline.runs()) if run["run_id"] not in known]

    pipeline.command("schedule", "create")
    try:
        first = wait_for(lambda: next((run for run in new_runs() if run["state"] in ENDED), None), "a run's end", 1200)
        second = wait_for(lambda: next(iter(new_runs()[1:]), None), "the second run", 300)
        pipeline.wait_for_task(second["run_id"], "DetectionExampleGen")
        assert "active" in pipeline.command("schedule", "list")
    finally:
        pipeline.command("schedule", "delete")
    return pipeline.status(first["run_id"]), pipeline.wait(second["run_id"])


def test_scheduled_runs_decide_and_notify_like_others(scheduled, helper):
    first, _ = scheduled
    states = states_of(first)
    assert first["state"] == "succeeded"
    assert {states[task] for task in NOT_TRAINED} == {"skipped"}
    assert states["ImportSchemaGen"] == "cached"
    (message,) = helper.messages(first["run_id"])
    assert message["event"] == "skipped"


def test_a_run_goes_on_to_its_end_and_notifies_if_its_schedule_is_deleted(scheduled, demo_pipeline, helper):
    """Needs Kubeflow Pipelines 2.16 or later; before, deleting is refused while a run has not ended."""
    _, second = scheduled
    assert second["state"] == "succeeded", second
    assert states_of(second)["SkipNotifier"] == "succeeded"
    (message,) = helper.messages(second["run_id"])
    assert message["event"] == "skipped"
    assert demo_pipeline.changed(EVERY_MINUTE).command("schedule", "list").startswith("No schedules")
