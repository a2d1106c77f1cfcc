"""Waits before retries of failed tasks; they are computed and recorded, but not slept.

Open-source Kubeflow: kubeflow/pipelines, backend/src/v2/compiler/argocompiler/container.go passes the policy's fields
to Argo, "0" for missing ones, whole seconds only; a task without a policy uses that of its DAG
(backend/src/v2/compiler/visitor.go). The default strategy of Argo is the one that docs/kubeflow.md recommends: limit 0,
retries of failed containers and lost pods. argoproj/argo-workflows, workflow/controller/operator.go,
`processNodeRetries`: the wait is duration * factor ** (failures - 1); the maximum duration counts from the start of the
first try, including its running time, and a wait that would end later is not started.

Vertex AI: api/v2alpha1/pipeline_spec.proto, `RetryPolicy`: the default factor is 2, the default maximum duration an
hour.
"""

from typing import Any

from conformance_driver.job import Backend

_DEFAULT_FACTOR = {"kubeflow": 1.0, "vertex": 2.0}
_DEFAULT_LONGEST_SECONDS = {"kubeflow": 0, "vertex": 3600}


def next_wait(policy: Any, backend: Backend, num_failures: int, elapsed_seconds: float) -> float | None:
    """Return the seconds to wait before the next try, or None if there is none.

    Args:
        policy: a `RetryPolicy`, or None.
        num_failures: one or more.
        elapsed_seconds: time since the start of the first try, including waits.
    """
    if policy is None or num_failures > policy.max_retry_count:
        return None
    factor = policy.backoff_factor or _DEFAULT_FACTOR[backend]
    wait = float(policy.backoff_duration.seconds * factor ** (num_failures - 1))
    longest_seconds = policy.backoff_max_duration.seconds or _DEFAULT_LONGEST_SECONDS[backend]
    return None if elapsed_seconds + wait > longest_seconds else wait
