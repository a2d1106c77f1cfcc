"""Resources, time limits and retries of the pipeline's nodes."""

import math
import re
from dataclasses import dataclass, replace
from typing import Annotated, Final, Literal

from detloom.schemas.errors import FieldError, NotNegativeInt, Ranged, check, check_fields, check_not_empty
from detloom.schemas.reading.redact import is_secret, redact
from detloom.schemas.run_file.accelerators import check_accelerator, is_tpu

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
_BEAM_NODES = ("DetectionExampleGen", "StatisticsGen", "DatasetValidator", "DetectionEvaluator")
_TPU_USERS = ("Trainer", "Tuner")
_GPU_USERS = ("Trainer", "Tuner", "DetectionEvaluator")
_SETTINGS_OF = {  # nodes that use the entry of another node
    "FailureNotifier": "Notifier",
    "SkipNotifier": "Notifier",
    "WarmStartModel": "ProductionModel",
}
_IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._:/@-]{0,511}")
_CPU = re.compile(r"[0-9]+(\.[0-9]+)?|[0-9]+m")
_MEMORY = re.compile(r"[0-9]+(\.[0-9]+)?(Mi|Gi|Ti|M|G|T)")


def check_image(field: str, image: str) -> None:
    """Raise FieldError unless the text looks like the address of a container image."""
    allowed = "the address of an image, such as registry.example.org/detloom:1.0"
    check(bool(_IMAGE.fullmatch(image)), field, repr(image), allowed)


def check_beam_options(options: tuple[str, ...]) -> None:
    """Raise FieldError for a secret among Beam's options, because logs and compiled jobs contain them."""
    for option in options:
        name = option.partition("=")[0]
        allowed = "options without secrets; Beam's clients read secrets from the environment"
        check(not is_secret(name), "beam_args", redact(name), allowed)


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """GPUs or a TPU slice of a node on Kubernetes."""

    type: str
    """`nvidia.com/gpu` (any GPU), a GPU model as GKE labels it, such as `nvidia-l4`, or a TPU: `tpu-v3`, `tpu-v4`,
    `tpu-v5e`."""
    count: int = 1
    """Number of GPUs of the container, or of TPU chips, which must be all chips of the machine."""
    topology: str = ""
    """Topology of the TPU chips, such as 2x4; empty derives it from `count`."""

    def __post_init__(self) -> None:
        check_fields(self, "1 or more", "count")
        check_accelerator(self.type, self.count, self.topology)


@dataclass(frozen=True, kw_only=True)
class Toleration:
    """Kubernetes toleration: allows a node's pod on machines with a taint."""

    key: str
    """Key of the taint."""
    operator: Literal["Exists", "Equal"] = "Exists"
    """`Exists` ignores the value of the taint, `Equal` compares it."""
    value: str = ""
    """Value of the taint, with `Equal`."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Effect of the taint; empty for any."""

    def __post_init__(self) -> None:
        check_not_empty(self, "key")
        check(self.operator == "Equal" or not self.value, "value", repr(self.value), "nothing with Exists", "operator")


@dataclass(frozen=True, kw_only=True)
class NodeSettings(Ranged):
    """Resources and retries of one node. Values that are null are taken from the entry for `*`."""

    node: NodeName
    """Name of the node; `*` applies to all nodes without their own value."""
    max_retries: NotNegativeInt | None = None
    """Number of retries of a failed node, on all runners; default 0. On one machine, a mistake in settings or data is
    not retried, because it would fail again."""
    backoff_seconds: Annotated[float, "0 to 1000000"] | None = None
    """Waiting time in seconds before the first retry; default 30."""
    backoff_factor: Annotated[float, "1 or more"] | None = None
    """Factor by which each following waiting time is longer; default 2."""
    max_backoff_seconds: Annotated[float, "above 0, at most 1000000"] | None = None
    """Longest waiting time in seconds; default 1800."""
    time_limit_minutes: Annotated[float, "above 0, at most 1000000"] | None = None
    """Time limit of an attempt in minutes. Longer attempts are stopped and count as failures. No limit by default."""
    cpu: str = ""
    """Cores on Kubeflow and Vertex Pipelines, such as "4" or "500m"; empty uses the cluster's default. Kubernetes
    reserves them, and the node may use more if the machine has idle ones."""
    cpu_limit: str = ""
    """Most cores that the node may use on Kubeflow; empty for no limit. A limit makes training slower."""
    memory: str = ""
    """Memory on Kubeflow and Vertex Pipelines, such as 16Gi, which Kubernetes reserves; empty uses the cluster's
    default."""
    memory_limit: str = ""
    """Memory limit on Kubeflow; the node is killed above it. Defaults to `memory`."""
    ephemeral_storage: str = ""
    """Disk space on Kubeflow for artifacts and temporary files, such as 50Gi. Kubernetes reserves it and kills the node
    if it uses more. Cannot be combined with `accelerator`. Empty for no reservation and no limit."""
    accelerator: Accelerator | None = None
    """GPUs or TPU chips on Kubernetes; on Vertex AI use `vertex.training`."""
    image: str = ""
    """Container image on Kubeflow and Vertex Pipelines instead of that of the section, for example with NVIDIA's
    libraries; a job of `vertex.training` has its own."""
    node_selector: dict[str, str] | None = None
    """Labels of the Kubernetes machines on which the node may run, in addition to those of its accelerator."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints of Kubernetes machines that the node tolerates."""
    beam_args: tuple[str, ...] | None = None
    """Apache Beam's pipeline options of the node instead of the run file's `beam_args`, for example to run only
    StatisticsGen and DetectionEvaluator on Dataflow or Flink; an empty list for none of these options."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("cpu", "cpu_limit"):
            cores = getattr(self, field)
            check(not cores or bool(_CPU.fullmatch(cores)), field, repr(cores), 'a number of cores, "4" or "500m"')
        for field in ("memory", "memory_limit", "ephemeral_storage"):
            size = getattr(self, field)
            check(not size or bool(_MEMORY.fullmatch(size)), field, repr(size), "a size such as 16Gi")
        if self.image:
            check_image("image", self.image)
            check(self.node != ALL_NODES, "image", repr(self.image), "the name of one node with an image", "node")
        check_beam_options(self.beam_args or ())
        if self.beam_args and self.node not in (ALL_NODES, *_BEAM_NODES):
            allowed = f"a node that uses Apache Beam: {', '.join(_BEAM_NODES)}"
            raise FieldError("beam_args", f"got options for {self.node}, allowed: {allowed}.", "node")
        if self.accelerator is not None and self.ephemeral_storage:
            reason = "a Kubeflow task can request only one extra resource"
            raise FieldError("ephemeral_storage", f"cannot be combined with accelerator: {reason}.", "accelerator")
        if self.accelerator is not None:
            users = _TPU_USERS if is_tpu(self.accelerator.type) else _GPU_USERS
            got = f"{self.accelerator.type} for {self.node}"
            check(self.node in users, "accelerator", got, f"an accelerator of {', '.join(users)}", "node")

    @property
    def num_gpus(self) -> int:
        """Number of GPUs on Kubernetes."""
        return self.accelerator.count if self.accelerator and not is_tpu(self.accelerator.type) else 0


@dataclass(frozen=True, kw_only=True)
class Retry:
    """Retry settings of a node, with all defaults filled in.

    Attributes:
        time_limit_seconds: time limit of one attempt; None for no limit.
    """

    max_retries: int = 0
    backoff_seconds: float = 30.0
    backoff_factor: float = 2.0
    max_backoff_seconds: float = 1800.0
    time_limit_seconds: float | None = None

    def wait_seconds(self, num_failures: int) -> float:
        """Return the waiting time in seconds after `num_failures` failures, 1 or more."""
        return min(self.uncut_wait_seconds(num_failures), self.max_backoff_seconds)

    def uncut_wait_seconds(self, num_failures: int) -> float:
        """Return the waiting time without the upper limit; infinity if it overflows a float."""
        try:
            return self.backoff_seconds * self.backoff_factor ** (num_failures - 1)
        except OverflowError:
            return math.inf if self.backoff_seconds else 0.0


def retry_of(nodes: tuple[NodeSettings, ...], node_id: str) -> Retry:
    """Return the retry settings of a node: the fields of its own entry, else those for `*`, else the defaults."""
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
    """Return the resources of a node: the fields of its own entry, else those for `*`. `retry_of` returns the
    retries."""
    entries: dict[str, NodeSettings] = {entry.node: entry for entry in nodes}
    nothing = NodeSettings(node=ALL_NODES)
    shared = entries.get(ALL_NODES, nothing)
    own = entries.get(_SETTINGS_OF.get(node_id, node_id), nothing)
    fields = ["cpu", "cpu_limit", "memory", "memory_limit", "node_selector", "tolerations"]
    fields += ["ephemeral_storage"] if own.accelerator is None else []
    taken = {field: getattr(own, field) or getattr(shared, field) for field in fields}
    beam_args = shared.beam_args if own.beam_args is None else own.beam_args
    return replace(own, beam_args=beam_args, **taken)
