"""Retries of failed tasks. Waits are computed and recorded, but not slept.

Open-source Kubeflow: kubeflow/pipelines, backend/src/v2/compiler/argocompiler/container.go passes the policy's fields
to Argo, "0" for missing ones, whole seconds only; a task without a policy uses that of its DAG
(backend/src/v2/compiler/visitor.go). argoproj/argo-workflows, workflow/controller/operator.go, `processNodeRetries`:
the wait is duration * factor ** (failures - 1); the maximum duration counts from the start of the first try, including
its running time, and a wait that would end later is not started.

Vertex AI: api/v2alpha1/pipeline_spec.proto, `RetryPolicy`: the default factor is 2, the default maximum duration an
hour.
"""

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class RetryRules:
    """Attributes:
    factor: 0 keeps the wait constant.
    longest_seconds: maximum time from the start of the first try to the end of a wait.
    """

    max_retries: int = 0
    wait_seconds: float = 0
    factor: float = 0
    longest_seconds: float = 0

    def next_wait(self, num_failures: int, elapsed_seconds: float) -> float | None:
        """Return the seconds to wait before the next try, or None if there is none.

        Args:
            num_failures: one or more.
            elapsed_seconds: time since the start of the first try, including waits.
        """
        wait = self.wait_seconds * (self.factor ** (num_failures - 1) if self.factor > 0 else 1)
        if num_failures > self.max_retries or elapsed_seconds + wait > self.longest_seconds:
            return None
        return wait


def retry_rules(policy: Any, backend: Literal["kubeflow", "vertex"]) -> RetryRules:
    """Convert a `RetryPolicy`; the empty one never retries."""
    default_factor, default_longest = (0.0, 0) if backend == "kubeflow" else (2.0, 3600)
    return RetryRules(
        max_retries=policy.max_retry_count,
        wait_seconds=policy.backoff_duration.seconds,
        factor=policy.backoff_factor or default_factor,
        longest_seconds=policy.backoff_max_duration.seconds or default_longest,
    )
