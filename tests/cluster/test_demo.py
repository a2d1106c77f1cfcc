"""Run the demo with `detloom submit --wait`, and read its results as a user does."""

import json
from types import SimpleNamespace

import pytest
from cluster_access.runs import states_of, task_in
from conftest import HOOK_TOKEN

from detloom.pipelines.backends.kubeflow_logs import log_nodes

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]


def test_every_task_of_the_demo_succeeds(demo_run):
    states = states_of(demo_run)
    assert demo_run["state"] == "succeeded", demo_run
    assert states.pop("SkipNotifier") == "skipped"
    assert set(states.values()) == {"succeeded"}


def test_a_model_is_pushed_to_the_volume(demo_run, demo_pipeline, helper):
    files = helper.files_under(demo_pipeline.push_to)
    assert len([file for file in files if file.endswith("/saved_model.pb")]) == 1, files


def test_the_push_is_reported_by_one_message(demo_run, helper):
    (message,) = helper.messages(demo_run["run_id"])
    assert (message["event"], message["path"]) == ("pushed", f"/{HOOK_TOKEN}")
    assert "AP50" in message["numbers"]  # the demo's gate has a floor for it
    assert demo_run["run_id"] in "".join(message["links"].values())


def test_the_api_has_the_log_of_a_task(demo_run, demo_pipeline):
    """Needs nothing else; for the log of a pod that is gone, a cluster that archives logs."""
    details = demo_pipeline.raw_run(demo_run["run_id"])["run_details"]["task_details"]
    failed = [
        SimpleNamespace(
            display_name=each.get("display_name", ""),
            state="FAILED",  # so that the functions for failed tasks find it
            child_tasks=[SimpleNamespace(**child) for child in each.get("child_tasks", ())],
        )
        for each in details
        if each.get("display_name", "").startswith("Trainer")
    ]
    logs = [demo_pipeline.api().read_log(demo_run["run_id"], node) for node in log_nodes("Trainer", failed)]
    assert any("step" in log for log in logs), [log[:300] for log in logs]


def test_the_job_in_the_api_is_the_compiled_one(demo_run, demo_pipeline):
    spec = demo_pipeline.raw_run(demo_run["run_id"])["pipeline_spec"]
    spec = spec.get("pipeline_spec", spec)
    assert spec["pipelineInfo"]["name"] == demo_pipeline.name
    assert len(json.dumps(spec)) < 500_000


def test_the_workflow_is_small_enough_to_be_stored_uncompressed(demo_run, cluster):
    status = cluster.workflow_of(demo_run["run_id"])["status"]
    assert "compressedNodes" not in status
    assert task_in(demo_run, "Notifier")["state"] == "succeeded"
