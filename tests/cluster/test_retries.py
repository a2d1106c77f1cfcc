"""Let containers fail, kill processes and delete pods, and count the tries.

How often a task is tried depends on Argo's settings in the cluster (docs/kubeflow.md, "Retries"), which the workflow of
each run contains. The tests expect what the table there says about the cluster's settings.
"""

import json

import pytest
from cluster_access.helper_pod import MOUNT
from cluster_access.pods import wait_for
from cluster_access.runs import TRAINING_DIR, states_of, task_in

from detloom.pipelines.backends.argo_retries import parse_retry_defaults, retry_warning

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2400)]
EXAMPLE_GEN = "DetectionExampleGen"
RETRIES = 1
RETRIED = f"{{node: {EXAMPLE_GEN}, max_retries: {RETRIES}, backoff_seconds: 1}}"
# Tries of a task with and without `max_retries: 1`, by retry policy of the cluster: after a failure, after a lost pod.
TRIES = {"OnError": (1, 2), "OnFailure": (2, 1), "Always": (2, 2)}


def expected_tries(cluster, run_id):
    """Return the tries after a failure of the container and after the loss of a pod."""
    defaults = parse_retry_defaults(json.dumps(cluster.workflow_of(run_id))) or {}
    return TRIES[defaults.get("retryPolicy", "OnFailure")]


@pytest.fixture(scope="module")
def disturbed(small_pipeline, cluster):
    """Run three pipelines, and disturb the first try of their first task: it fails, is killed, its pod is deleted.

    Returns:
        The ids of the runs. Those that went on are terminated.
    """
    pipelines = {
        "fails": small_pipeline("fails", f"nodes=[{RETRIED}]", f"data.path={MOUNT}/lost"),
        "is killed": small_pipeline("killed", f"nodes=[{RETRIED}]"),
        "loses its pod": small_pipeline("deleted", f"nodes=[{RETRIED}]"),
    }
    ids = {name: pipeline.submit()["run_id"] for name, pipeline in pipelines.items()}
    cluster.kill_task_in(cluster.wait_for_running(ids["is killed"], EXAMPLE_GEN))
    cluster.delete_pod(cluster.wait_for_running(ids["loses its pod"], EXAMPLE_GEN))
    finished = {}
    for name, pipeline in pipelines.items():

        def decided(pipeline=pipeline, run_id=ids[name]):
            status = pipeline.status(run_id)
            return status if task_in(status, EXAMPLE_GEN)["state"] in ("succeeded", "failed") else None

        decided_status = wait_for(decided, f"the end of {EXAMPLE_GEN} that {name}", 900)
        if decided_status["state"] == "running" and task_in(decided_status, EXAMPLE_GEN)["state"] == "succeeded":
            pipeline.terminate(ids[name])
        finished[name] = (ids[name], pipeline.wait(ids[name]), task_in(decided_status, EXAMPLE_GEN)["state"])
    return finished


@pytest.mark.parametrize("what", ["fails", "is killed"])
def test_a_container_that_fails_is_tried_as_often_as_the_table_says(disturbed, cluster, what):
    """Needs room for three small pods at a time, and the permission to run commands in pods."""
    run_id, _, state = disturbed[what]
    tries, _ = expected_tries(cluster, run_id)
    assert len(cluster.tries_of(run_id, EXAMPLE_GEN)) == tries
    assert state == ("succeeded" if what == "is killed" and tries > 1 else "failed")


def test_a_task_that_loses_its_pod_is_tried_as_often_as_the_table_says(disturbed, cluster):
    """Needs the permission to delete pods."""
    run_id, _, state = disturbed["loses its pod"]
    _, tries = expected_tries(cluster, run_id)
    assert len(cluster.tries_of(run_id, EXAMPLE_GEN)) == tries
    assert state == ("succeeded" if tries > 1 else "failed")


def test_a_terminated_run_is_shown_as_cancelled(disturbed):
    """Needs a cluster that retries lost pods or failed containers, so that there is a run to terminate."""
    went_on = [status for _, status, state in disturbed.values() if state == "succeeded"]
    if not went_on:
        pytest.skip("no run went on")
    assert {status["state"] for status in went_on} == {"cancelled"}


def test_the_commands_warn_of_settings_that_lose_work(disturbed, small_pipeline, cluster):
    from detloom.pipelines.backends.backend import connect
    from detloom.pipelines.samples.sample_run_file import sample_run_file
    from detloom.schemas.reading.overrides import parse_set
    from detloom.schemas.run_file.read_run_file import read_run_file

    pipeline = small_pipeline("fails", f"nodes=[{RETRIED}]")
    overrides = [parse_set(text) for text in pipeline.settings]
    run = read_run_file(sample_run_file("demo"), overrides=overrides, place="kubeflow")
    run_id, _, _ = disturbed["fails"]
    defaults = parse_retry_defaults(json.dumps(cluster.workflow_of(run_id)))
    assert connect(run, "kubeflow").warnings(run) == [text for text in [retry_warning(defaults)] if text]


def test_training_resumes_after_its_pod_is_deleted(small_pipeline, cluster, helper):
    """Needs a cluster that retries lost pods, and the permission to delete them."""
    training_dir = f"{TRAINING_DIR}-resumed"  # other runs leave theirs in the common one
    steps = ["train.num_steps=1500", "train.checkpoint_every_n=100", f"kubeflow.training_dir={training_dir}"]
    retried = "nodes=[{node: Trainer, max_retries: 2, backoff_seconds: 1}]"
    pipeline = small_pipeline("resumed", *steps, retried)
    run_id = pipeline.submit()["run_id"]
    if expected_after_loss(wait_for_workflow(cluster, run_id)) == 1:
        pipeline.terminate(run_id)
        pytest.skip("this cluster does not retry lost pods")
    pod = cluster.wait_for_running(run_id, "Trainer", seconds=1200)
    wait_for(lambda: newest_step(helper, training_dir), "a checkpoint", 600)
    cluster.delete_pod(pod)
    saved = newest_step(helper, training_dir)
    status = pipeline.wait(run_id)
    assert status["state"] == "succeeded", status
    assert states_of(status)["Trainer"] == "succeeded"
    last = cluster.pods_of(run_id, "Trainer")[-1].metadata.name
    assert last != pod
    log = cluster.read_log(last)
    assert any(f"Resuming training from step {step} " in log for step in range(saved, 1500)), log[-3000:]
    assert not newest_step(helper, training_dir)


def wait_for_workflow(cluster, run_id):
    def processed():
        try:
            workflow = cluster.workflow_of(run_id)
        except ValueError:  # not created yet
            return None
        return workflow if workflow.get("status", {}).get("phase") else None

    return wait_for(processed, "the workflow", 120)


def expected_after_loss(workflow):
    defaults = parse_retry_defaults(json.dumps(workflow)) or {}
    return TRIES[defaults.get("retryPolicy", "OnFailure")][1]


def newest_step(helper, folder):
    """Return the step of the newest checkpoint in a folder; 0 without one."""
    steps = [
        file.rpartition("/")[2].removesuffix(".index") for file in helper.files_under(folder) if file.endswith(".index")
    ]
    return max((int(step.rpartition("-")[2]) for step in steps if step.rpartition("-")[2].isdigit()), default=0)
