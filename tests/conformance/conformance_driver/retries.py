"""When a task that failed is tried again. Waits are worked out and recorded, never slept.

Open-source Kubeflow: kubeflow/pipelines, backend/src/v2/compiler/argocompiler/container.go gives the policy's fields
to Argo, "0" for what is not set, seconds without their fraction; a task without a policy has that of the DAG it is in
(backend/src/v2/compiler/visitor.go). argoproj/argo-workflows, workflow/controller/operator.go, `processNodeRetries`:
the wait is duration * factor ** (failures - 1), the longest duration counts from the start of the first try, its
running time included, and a wait that would end after that is not begun.

Vertex AI: api/v2alpha1/pipeline_spec.proto, `RetryPolicy`: the factor is 2 and the longest duration an hour where they
are not set.
"""

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class RetryRules:
    """Attributes:
    factor: 0 leaves the wait as it is.
    longest_seconds: from the start of the first try to the end of a wait.
    """

    max_retries: int = 0
    wait_seconds: float = 0
    factor: float = 0
    longest_seconds: float = 0

    def next_wait(self, num_failures: int, elapsed_seconds: float) -> float | None:
        """Seconds to wait before the next try; None where there is none.

        Args:
            num_failures: one or more.
            elapsed_seconds: since the start of the first try, waits included.
        """
        wait = self.wait_seconds * (self.factor ** (num_failures - 1) if self.factor > 0 else 1)
        if num_failures > self.max_retries or elapsed_seconds + wait > self.longest_seconds:
            return None
        return wait


def retry_rules(policy: Any, backend: Literal["kubeflow", "vertex"]) -> RetryRules:
    """Of a `RetryPolicy`; the empty one never tries again."""
    default_factor, default_longest = (0.0, 0) if backend == "kubeflow" else (2.0, 3600)
    return RetryRules(
        max_retries=policy.max_retry_count,
        wait_seconds=policy.backoff_duration.seconds,
        factor=policy.backoff_factor or default_factor,
        longest_seconds=policy.backoff_max_duration.seconds or default_longest,
    )
