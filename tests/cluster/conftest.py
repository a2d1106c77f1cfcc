"""Fixtures of the tests on a real cluster; all of them skip without one. `make test-cluster` says how to name it.

All tests need a cluster with Kubeflow Pipelines, and the permission to read pods and workflows and to create a pod, a
secret and a claim in the namespace of the runs. The claim has the access mode ReadWriteMany and the default storage
class. Pods must reach each other. Each test says what else it needs.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))

from cluster_access.helper_pod import HelperPod, helper_pod
from cluster_access.pods import Cluster
from cluster_access.runs import Pipeline, make_pipeline, new_name
from cluster_access.settings import HOST_VARIABLE, ClusterSettings, read_settings
from small_demo import SMALL

HOOK_TOKEN = "hook+Q7x=zzk2"
# Small, so that a cluster of one machine with two cores can run it; with a value for each kind of setting.
RESOURCES = "{node: '*', cpu: 100m, memory: 4Gi, ephemeral_storage: 4Gi}"
LIMITED = "{node: DatasetValidator, cpu: 100m, cpu_limit: '2', memory: 2Gi, memory_limit: 4Gi}"


@pytest.fixture(scope="session")
def settings() -> ClusterSettings:
    found = read_settings()
    if found is None:
        pytest.skip(f"needs a cluster: {HOST_VARIABLE}, which `make test-cluster` sets")
    return found


@pytest.fixture(scope="session")
def cluster(settings: ClusterSettings) -> Cluster:
    return Cluster(settings.namespace)


@pytest.fixture(scope="session")
def session_name() -> str:
    """Return the name of the session's claim, secret, helper pod and experiment."""
    return new_name()


@pytest.fixture(scope="session")
def helper(cluster: Cluster, settings: ClusterSettings, session_name: str) -> Iterator[HelperPod]:
    with helper_pod(cluster, settings.image, session_name, HOOK_TOKEN) as found:
        yield found


@pytest.fixture(scope="session")
def demo_pipeline(settings: ClusterSettings, session_name: str, helper: HelperPod) -> Pipeline:
    """Return the demo with its own model, training and gates; it trains again only with new images."""
    changes = [f"nodes=[{RESOURCES}, {LIMITED}]", "retrain={min_new_images: 1}"]
    return make_pipeline(settings, session_name, f"{session_name}-demo", changes)


@pytest.fixture(scope="session")
def small_pipeline(settings: ClusterSettings, session_name: str, helper: HelperPod) -> Callable[..., Pipeline]:
    """Return a function that makes a pipeline whose training takes seconds, from the end of its name and settings."""

    def make(name: str, *changes: str) -> Pipeline:
        return make_pipeline(settings, session_name, f"{session_name}-{name}", [*SMALL, *changes])

    return make


@pytest.fixture(scope="session")
def demo_run(demo_pipeline: Pipeline) -> dict[str, Any]:
    """Return the status of the demo's first run: 1,000 steps, 12 minutes on two cores."""
    return demo_pipeline.submit_and_wait()
