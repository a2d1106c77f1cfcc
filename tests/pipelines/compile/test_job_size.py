"""Measure what a job makes of Argo's workflow, which Kubeflow Pipelines cannot read above 1 MiB."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "conformance"))  # tests are not a package

from conformance_driver import workflow_size
from conformance_driver.job import read_job
from conformance_driver.workflow_size import node_bytes, patch_bytes, workflow_bytes

HALF_MEGABYTE = 500_000
LARGEST = (
    "notifications.events=[failed,refused,pushed,skipped]",
    "trainer.warm_start=production",
    "tuner={max_trials: 12}",
    "nodes=[{node: '*', max_retries: 2, time_limit_minutes: 60, cpu: '2', memory: 8Gi, ephemeral_storage: 20Gi}]",
)


@pytest.fixture
def job_of(compile_text):
    def compiled(name, *settings):
        return read_job(compile_text(name, *settings), "kubeflow", "minio://bucket/root")

    return compiled


def test_the_nodes_of_the_demo_are_below_half_a_megabyte(job_of):
    job = job_of("kubeflow_cpu")
    assert node_bytes(job) < HALF_MEGABYTE
    assert patch_bytes(job) < 0.75 * node_bytes(job)


def test_the_workflow_of_the_largest_job_is_below_argos_limit(job_of, monkeypatch):
    """Check the job with retraining, a search, all notifications, retries and limits: 17 tasks, in two DAGs.

    Measured sizes are 7 percent above the estimate. Most of what is left are addresses and types of artifacts, which
    the backend writes.
    """
    job = job_of("kubeflow_gpu", *LARGEST)
    assert 1.07 * workflow_bytes(job) < workflow_size.LIMIT_BYTES
    monkeypatch.setattr(workflow_size, "_ATTEMPTS", 1)  # without default retries in Argo's configuration
    assert node_bytes(job) < HALF_MEGABYTE
