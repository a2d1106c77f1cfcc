"""Run the demo with `detloom submit --wait`, and read its results as a user does."""

import json
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest
from cluster_access.runs import states_of, task_in
from conftest import HOOK_TOKEN

from detloom.pipelines.backends.kubeflow_logs import log_nodes

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]


def test_every_task_of_the_demo_succeeds(demo_run):
    """Needs nothing else."""
    states = states_of(demo_run)
    assert demo_run["state"] == "succeeded", demo_run
    assert states.pop("SkipNotifier") == "skipped"
    assert set(states.values()) == {"succeeded"}


def test_a_model_is_pushed_to_the_volume(demo_run, demo_pipeline, helper):
    """Needs nothing else."""
    files = helper.files_under(demo_pipeline.push_to)
    assert len([file for file in files if file.endswith("/saved_model.pb")]) == 1, files


def test_the_push_is_reported_by_one_message(demo_run, helper):
    """Needs nothing else."""
    (message,) = helper.messages(demo_run["run_id"])
    assert (message["event"], message["path"]) == ("pushed", f"/{HOOK_TOKEN}")
    assert "AP50" in message["numbers"]  # the demo's gate has a floor for it
    assert demo_run["run_id"] in "".join(message["links"].values())


@pytest.fixture(scope="module")
def artifacts(demo_run, helper):
    return {(each["task"], each["output"]): each for each in helper.artifacts_of(demo_run["run_id"])}


def test_ml_metadata_has_every_output_with_its_type(demo_run, artifacts):
    """Needs the service `metadata-grpc-service` in the namespace of the runs."""
    types = {key: each["type"] for key, each in artifacts.items()}
    assert types["DetectionExampleGen", "examples"] == "tfx.Examples"
    assert types["Trainer", "model"] == "tfx.Model"
    assert types["DetectionEvaluator", "page"] == "system.HTML"
    tasks = {task for task, _ in types}
    assert tasks >= {"StatisticsGen", "DatasetValidator", "Pusher", "ModelCard", "TrainingRecord"}


def test_metrics_and_curves_have_the_form_that_the_user_interface_draws(demo_run, artifacts):
    """Needs the service `metadata-grpc-service` in the namespace of the runs."""
    metrics = artifacts["DetectionEvaluator", "metrics"]
    assert metrics["type"] == "system.Metrics"
    assert 0.0 <= metrics["metadata"]["AP50"] <= 1.0
    curves = artifacts["DetectionEvaluator", "curves"]
    assert curves["type"] == "system.ClassificationMetrics"
    assert metrics["metadata"]["display_name"] == "metrics"
    assert curves["metadata"]["display_name"] == "curves"
    # Kubeflow Pipelines, frontend/src/components/viewers/MetricsVisualizations.tsx, reads these two keys.
    matrix, points = curves["metadata"]["confusionMatrix"]["struct"], curves["metadata"]["confidenceMetrics"]["list"]
    labels = [each["displayName"] for each in matrix["annotationSpecs"]]
    assert len(matrix["rows"]) == len(labels) > 2
    assert {"confidenceThreshold", "recall", "falsePositiveRate"} <= set(points[0])


@pytest.mark.parametrize(
    ("task", "output", "begin"),
    [
        ("DetectionEvaluator", "page", "<!doctype html"),
        ("DatasetValidator", "page", "<!doctype html"),
        ("DetectionEvaluator", "summary", "#"),
    ],
)
def test_pages_can_be_opened_in_the_user_interface(demo_run, artifacts, settings, task, output, begin):
    """Needs KFP_HOST to be the address of the user interface, which serves artifacts beside the API."""
    scheme, _, path = artifacts[task, output]["uri"].partition("://")
    try:
        with urllib.request.urlopen(f"{settings.host}/artifacts/{scheme}/{path}", timeout=60) as answer:
            text = answer.read().decode()
    except urllib.error.HTTPError as error:
        if error.code in (404, 501):
            pytest.skip(f"KFP_HOST is the API without the user interface: it answers {error.code} for an artifact")
        raise
    assert text.lower().startswith(begin)


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
    """Needs nothing else."""
    spec = demo_pipeline.raw_run(demo_run["run_id"])["pipeline_spec"]
    spec = spec.get("pipeline_spec", spec)
    assert spec["pipelineInfo"]["name"] == demo_pipeline.name
    assert len(json.dumps(spec)) < 500_000


def test_the_workflow_is_small_enough_to_be_stored_uncompressed(demo_run, cluster):
    """Needs nothing else."""
    status = cluster.workflow_of(demo_run["run_id"])["status"]
    assert "compressedNodes" not in status
    assert task_in(demo_run, "Notifier")["state"] == "succeeded"
