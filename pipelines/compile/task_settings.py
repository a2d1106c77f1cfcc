"""How tasks are cached, tried again, ended and told their environment: what TFX's compiler has no words for."""

import copy
import math
from collections.abc import Collection, Mapping
from typing import Any

from detloom.pipelines.compile.pipeline_spec import Spec, containers_of, tasks_of
from detloom.schemas.errors import InputError
from detloom.schemas.node_config import Retry
from detloom.schemas.run_file import Place, RunFile

# Their answers depend on what no cache sees: a folder of versions or records, the time, or a message that was sent.
UNCACHED_NODES = frozenset(
    (
        "FailureNotifier",
        "Notifier",
        "ProductionModel",
        "Pusher",
        "RetrainDecision",
        "SkipNotifier",
        "TrainingRecord",
        "WarmStartModel",
    )
)
_EXAMPLE_GEN = "DetectionExampleGen"
_YEAR_SECONDS = 365 * 24 * 3600
_MAX_WAIT_ON_VERTEX = 3600  # kfp cuts longer ones off "to reflect runtime behavior" (kfp/dsl/structures.py)


def uncached_nodes(run: RunFile, place: Place) -> frozenset[str]:
    """Nodes that no cache may answer."""
    found = set(UNCACHED_NODES)
    if run.push.vertex is not None:
        found.remove("Pusher")  # each deployment would add one more copy of the same model
    if place == "kubeflow":
        found.add(_EXAMPLE_GEN)  # its driver never runs there before the cache is looked into: new data went unseen
    elif run.retrain is not None and run.retrain.max_age_days:
        # Age is a reason to train where data and settings, and so their keys, are the same.
        found |= {"Tuner", "Trainer"}
    return frozenset(found)


def set_caching(spec: Spec, uncached: Collection[str]) -> Spec:
    """The tasks of these nodes always run; TFX has a switch for whole pipelines only."""
    edited = copy.deepcopy(spec)
    for name, task in tasks_of(edited).items():
        if name in uncached:
            task["cachingOptions"] = {}
    return edited


def set_retries(spec: Spec, retries: Mapping[str, Retry], place: Place) -> Spec:
    """The tasks of these nodes are tried again.

    Raises:
        InputError: for a wait that the backend cannot keep.
    """
    edited = copy.deepcopy(spec)
    tasks = tasks_of(edited)
    for name, retry in retries.items():
        if retry.max_retries and name in tasks:
            tasks[name]["retryPolicy"] = retry_policy(name, retry, place)
    return edited


def retry_policy(node_id: str, retry: Retry, place: Place) -> dict[str, Any]:
    """kfp's `RetryPolicy`.

    Open-source Kubeflow hands it to Argo Workflows (kubeflow/pipelines, backend/src/v2/compiler/argocompiler/
    container.go), which knows no longest wait, takes whole factors only, and reads `backoffMaxDuration` as the time
    that all tries together may take: with an hour, kfp's default, a training of two would not be tried again
    (argoproj/argo-workflows, workflow/controller/operator.go, processNodeRetries). On Vertex AI it is the longest
    wait (cloud.google.com/vertex-ai/docs/pipelines/configure-retries), which is only named where it matters: kfp's own
    documentation takes it for the time of all tries there, too.

    Raises:
        InputError: for a factor or a wait that the backend does not know.
    """
    longest = retry.uncut_wait_seconds(retry.max_retries)
    if place == "kubeflow":
        _check_argo(node_id, retry, longest)
        limit = _YEAR_SECONDS
    else:
        is_cut = longest > retry.max_backoff_seconds
        if min(longest, retry.max_backoff_seconds) > _MAX_WAIT_ON_VERTEX:
            raise InputError(
                f"nodes, {node_id}: max_backoff_seconds: got {retry.max_backoff_seconds:g}, allowed on Vertex AI with "
                f"these waits: at most {_MAX_WAIT_ON_VERTEX}."
            )
        limit = math.ceil(retry.max_backoff_seconds) if is_cut else _MAX_WAIT_ON_VERTEX
    return {
        "backoffDuration": f"{math.ceil(retry.backoff_seconds)}s",
        "backoffFactor": float(retry.backoff_factor),
        "backoffMaxDuration": f"{limit}s",
        "maxRetryCount": retry.max_retries,
    }


def _check_argo(node_id: str, retry: Retry, longest: float) -> None:
    where = f"nodes, {node_id}"
    if retry.backoff_factor != int(retry.backoff_factor):
        raise InputError(f"{where}: backoff_factor: got {retry.backoff_factor:g}, allowed on Kubeflow: a whole number.")
    if longest > retry.max_backoff_seconds:
        raise InputError(
            f"{where}: max_backoff_seconds: got {retry.max_backoff_seconds:g}, but on Kubeflow, which knows no longest "
            f"wait, the one before try {retry.max_retries + 1} is {longest:g} seconds; allow that, or lower "
            "max_retries, backoff_seconds or backoff_factor."
        )


def set_environment(spec: Spec, environments: Mapping[str, Mapping[str, str]]) -> Spec:
    """Environment variables of the containers of these nodes."""
    edited = copy.deepcopy(spec)
    for name, container in containers_of(edited).items():
        if environments.get(name):
            container["env"] = [{"name": key, "value": value} for key, value in sorted(environments[name].items())]
    return edited
