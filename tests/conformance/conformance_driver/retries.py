"""Retries of failed tasks. Waits are computed and recorded, but not slept.

Open-source Kubeflow: kubeflow/pipelines, backend/src/v2/compiler/argocompiler/container.go passes the policy's fields
to Argo, "0" for missing ones, whole seconds only; a task without a policy uses that of its DAG
(backend/src/v2/compiler/visitor.go). The compiled strategy names no `retryPolicy`. Argo merges
`workflowDefaults.spec.templateDefaults` of its configuration into it, fields of the template first; without any,
the policy is OnFailure. argoproj/argo-workflows, workflow/controller/operator.go, `processNodeRetries`: OnFailure
retries a node that failed by its exit code, OnError one whose pod was lost, Always both; the wait is duration * factor
** (failures - 1); the maximum duration counts from the start of the first try, including its running time, and a wait
that would end later is not started; a strategy without a back-off has neither.

Vertex AI: api/v2alpha1/pipeline_spec.proto, `RetryPolicy`: the default factor is 2, the default maximum duration an
hour.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from conformance_driver.results import Phase

# manifests/kustomize/third-party/argo/base/workflow-controller-configmap-patch.yaml; none in 2.16.
STOCK_DEFAULTS: Mapping[str, str] = {"limit": "2", "retryPolicy": "OnError"}
RECOMMENDED_DEFAULTS: Mapping[str, str] = {"limit": "0", "retryPolicy": "Always"}  # docs/kubeflow.md
_RETRIED: Mapping[str, tuple[Phase, ...]] = {
    "OnFailure": ("Failed",),
    "OnError": ("Error",),
    "Always": ("Failed", "Error"),
}


@dataclass(frozen=True, kw_only=True)
class RetryRules:
    """Attributes:
    factor: 0 keeps the wait constant.
    longest_seconds: maximum time from the start of the first try to the end of a wait.
    retried: the phases of a try after which there is another.
    """

    max_retries: int = 0
    wait_seconds: float = 0
    factor: float = 0
    longest_seconds: float = 0
    retried: tuple[Phase, ...] = ("Failed", "Error")

    def next_wait(self, num_failures: int, elapsed_seconds: float, phase: Phase = "Failed") -> float | None:
        """Return the seconds to wait before the next try, or None if there is none.

        Args:
            num_failures: one or more.
            elapsed_seconds: time since the start of the first try, including waits.
        """
        wait = self.wait_seconds * (self.factor ** (num_failures - 1) if self.factor > 0 else 1)
        if (
            phase not in self.retried
            or num_failures > self.max_retries
            or elapsed_seconds + wait > self.longest_seconds
        ):
            return None
        return wait


def retry_rules(
    policy: Any, backend: Literal["kubeflow", "vertex"], defaults: Mapping[str, str] = RECOMMENDED_DEFAULTS
) -> RetryRules:
    """Convert a `RetryPolicy`, or None for a task without one.

    Args:
        defaults: `retryStrategy` of Argo's `templateDefaults`; empty for none.
    """
    if backend == "kubeflow":
        retried = _RETRIED[defaults.get("retryPolicy", "OnFailure")]
        if policy is None:  # the defaults are its whole strategy, without a back-off
            return RetryRules(max_retries=int(defaults.get("limit", "0")), longest_seconds=math.inf, retried=retried)
        default_factor, default_longest = 0.0, 0
    else:
        retried, default_factor, default_longest = ("Failed", "Error"), 2.0, 3600
        if policy is None:
            return RetryRules()
    return RetryRules(
        max_retries=policy.max_retry_count,
        wait_seconds=policy.backoff_duration.seconds,
        factor=policy.backoff_factor or default_factor,
        longest_seconds=policy.backoff_max_duration.seconds or default_longest,
        retried=retried,
    )
