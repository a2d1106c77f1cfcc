"""What a node of the pipeline may use, how long it may take, and how often it is tried."""

import math
import re
from dataclasses import dataclass, replace
from typing import Final, Literal

from detloom.schemas.accelerators import check_accelerator, is_tpu
from detloom.schemas.checks import check, check_fields

NodeName = Literal[
    "*",
    "DetectionExampleGen",
    "StatisticsGen",
    "ImportSchemaGen",
    "ExampleValidator",
    "DatasetValidator",
    "RetrainDecision",
    "Tuner",
    "Trainer",
    "ProductionModel",
    "DetectionEvaluator",
    "ModelCard",
    "Pusher",
    "TrainingRecord",
    "Notifier",
]
ALL_NODES: Final = "*"
_TPU_USERS = ("Trainer", "Tuner")
_GPU_USERS = ("Trainer", "Tuner", "DetectionEvaluator")
_SETTINGS_OF = {  # nodes that share another's entry
    "FailureNotifier": "Notifier",
    "SkipNotifier": "Notifier",
    "WarmStartModel": "ProductionModel",
}
_CPU = re.compile(r"[0-9]+(\.[0-9]+)?|[0-9]+m")
_MEMORY = re.compile(r"[0-9]+(\.[0-9]+)?(Mi|Gi|Ti|M|G|T)")


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """GPUs or a TPU slice of a node on Kubernetes."""

    type: str
    """`nvidia.com/gpu` (any), a GPU model as GKE labels it, such as `nvidia-l4`, or a TPU: `tpu-v3`, `tpu-v4`,
    `tpu-v5e`."""
    count: int = 1
    """GPUs of the container, or TPU chips: all that the machine has."""
    topology: str = ""
    """Of the TPU chips, such as 2x4; empty for the one that their count has."""

    def __post_init__(self) -> None:
        check_fields(self, "1 or more", "count")
        check_accelerator(self.type, self.count, self.topology)


@dataclass(frozen=True, kw_only=True)
class Toleration:
    """Lets a node's pod onto machines with a taint."""

    key: str
    """Of the taint."""
    operator: Literal["Exists", "Equal"] = "Exists"
    """Whether the taint's value matters."""
    value: str = ""
    """Of the taint, with `Equal`."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Of the taint; empty for any."""

    def __post_init__(self) -> None:
        check(bool(self.key), "key", "nothing", "the key of a taint")
        check(self.operator == "Equal" or not self.value, "value", repr(self.value), "nothing with Exists", "operator")


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """What one node may use and how it is tried again. What is null here is taken from the entry for `*`."""

    node: NodeName
    """Which one; `*` is all that do not say otherwise."""
    max_retries: int | None = None
    """How often a node that failed is tried again, on all runners; nothing else: 0. A mistake in settings or data is
    not tried again on one machine, as it would fail again."""
    backoff_seconds: float | None = None
    """Wait before the first of these tries; nothing else: 30."""
    backoff_factor: float | None = None
    """How much longer each next wait is; nothing else: 2."""
    max_backoff_seconds: float | None = None
    """The longest wait; nothing else: 1800."""
    time_limit_minutes: float | None = None
    """A try that takes longer is ended and has failed; nothing else: no limit."""
    cpu: str = ""
    """Cores on Kubeflow and Vertex Pipelines, such as "4" or "500m"; empty leaves it to the cluster."""
    memory: str = ""
    """Memory there, such as 16Gi."""
    accelerator: Accelerator | None = None
    """GPUs or TPU chips on Kubernetes; on Vertex AI see `vertex.training`."""
    node_selector: dict[str, str] | None = None
    """Labels of the Kubernetes machines that the node may run on, beside those of its accelerator."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints of Kubernetes machines that do not keep it away."""

    def __post_init__(self) -> None:
        check_fields(self, "0 or more", "max_retries", "backoff_seconds")
        check_fields(self, "1 or more", "backoff_factor")
        check_fields(self, "above 0", "max_backoff_seconds", "time_limit_minutes")
        check(not self.cpu or bool(_CPU.fullmatch(self.cpu)), "cpu", repr(self.cpu), 'a number of cores, "4" or "500m"')
        is_memory = not self.memory or bool(_MEMORY.fullmatch(self.memory))
        check(is_memory, "memory", repr(self.memory), "a size such as 16Gi")
        if self.accelerator is not None:
            users = _TPU_USERS if is_tpu(self.accelerator.type) else _GPU_USERS
            got = f"{self.accelerator.type} for {self.node}"
            check(self.node in users, "accelerator", got, f"at {', '.join(users)}, which use one", "node")


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How a node is tried again, with nothing left open.

    Attributes:
        time_limit_seconds: of one try; None for no limit.
    """

    max_retries: int = 0
    backoff_seconds: float = 30.0
    backoff_factor: float = 2.0
    max_backoff_seconds: float = 1800.0
    time_limit_seconds: float | None = None

    def wait_seconds(self, num_failures: int) -> float:
        """Seconds to wait after so many failures, one or more."""
        return min(self.uncut_wait_seconds(num_failures), self.max_backoff_seconds)

    def uncut_wait_seconds(self, num_failures: int) -> float:
        """The same where no wait is too long; infinity for more than a float can say."""
        try:
            return self.backoff_seconds * self.backoff_factor ** (num_failures - 1)
        except OverflowError:
            return math.inf if self.backoff_seconds else 0.0


def retry_of(nodes: tuple[NodeSettings, ...], node_id: str) -> Retry:
    """What holds for a node: its own entry's fields, else those for all, else the defaults."""
    values: dict[str, float] = {}
    for name in (ALL_NODES, _SETTINGS_OF.get(node_id, node_id)):
        for entry in nodes:
            if entry.node == name:
                fields = ("max_retries", "backoff_seconds", "backoff_factor", "max_backoff_seconds")
                values.update({key: value for key in fields if (value := getattr(entry, key)) is not None})
                if entry.time_limit_minutes is not None:
                    values["time_limit_seconds"] = 60 * entry.time_limit_minutes
    return Retry(**values)  # type: ignore[arg-type]


def settings_of(nodes: tuple[NodeSettings, ...], node_id: str) -> NodeSettings:
    """What a node may use: its own entry's fields, else those for all. How it is tried again, `retry_of` says."""
    entries: dict[str, NodeSettings] = {entry.node: entry for entry in nodes}
    nothing = NodeSettings(node=ALL_NODES)
    shared = entries.get(ALL_NODES, nothing)
    own = entries.get(_SETTINGS_OF.get(node_id, node_id), nothing)
    fields = ("cpu", "memory", "node_selector", "tolerations")
    taken = {field: getattr(own, field) or getattr(shared, field) for field in fields}
    return replace(own, **taken)


def check_nodes(nodes: tuple[NodeSettings, ...]) -> None:
    """Raise FieldError where a node has two entries."""
    names = [entry.node for entry in nodes]
    twice = sorted({name for name in names if names.count(name) > 1})
    check(not twice, "nodes", f"two entries for {', '.join(twice)}", "one entry a node")
