"""Check the default retries of a cluster's Argo Workflows, which decide what `max_retries` of a run file does.

Kubeflow Pipelines compiles a retry strategy without a policy, and Argo merges its own defaults into it
(`workflowDefaults.spec.templateDefaults` in its ConfigMap workflow-controller-configmap). With the policy OnError, as
in Kubeflow Pipelines 2.17, a container that fails is not retried; without defaults, a lost pod is not. The API does not
show Argo's configuration, but the workflow of an earlier run contains the defaults that were merged into it.
"""

import json
from collections.abc import Mapping
from typing import Any

RECOMMENDED = '{limit: "0", retryPolicy: Always}'
_SEE = "docs/kubeflow.md#retries"
_CHANGE = f"set templateDefaults.retryStrategy in the cluster's workflow-controller-configmap to {RECOMMENDED} ({_SEE})"


def parse_retry_defaults(manifest: str) -> Mapping[str, Any] | None:
    """Return `retryStrategy` of the defaults in a workflow that Argo has processed; None if it has none.

    Args:
        manifest: JSON of a workflow; other text has none.
    """
    try:
        found = json.loads(manifest)["spec"]["templateDefaults"]["retryStrategy"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def retry_warning(defaults: Mapping[str, Any] | None) -> str:
    """Return what is wrong for a run file with `max_retries`; empty if failed containers and lost pods are retried.

    Args:
        defaults: of `parse_retry_defaults`; None if they are unknown.
    """
    if defaults is None:
        return (
            "nodes: max_retries depends on the default retries of the cluster's Argo Workflows, which no earlier run "
            f"shows; in Kubeflow Pipelines 2.17 as installed, a container that fails is not retried: {_CHANGE}."
        )
    policy = str(defaults.get("retryPolicy", "OnFailure"))
    without = {
        "OnError": "a container that fails is not retried",
        "OnFailure": "a task whose pod is deleted or preempted is not retried",
        "OnTransientError": "only errors that Argo calls transient are retried",
    }.get(policy)
    return f"nodes: max_retries: with this cluster's retry policy {policy}, {without}; {_CHANGE}." if without else ""
