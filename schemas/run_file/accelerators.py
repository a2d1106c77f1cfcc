"""GPUs and TPUs that TensorFlow can train on, and their machine types on GKE and in Vertex AI's custom jobs.

A TPU slice must fit into one machine, which has at most 8 chips: the training strategy uses the TPU of its own machine.
TensorFlow on a slice of several machines needs a service on each of them, which neither GKE nor Vertex AI starts for a
custom image.

Sources (November 2026); untested on real hardware:

* TPUs on GKE: "Plan TPUs in GKE" (cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus) and the tables of GKE's
  cluster autoscaler (package machinetypes).
* TPUs on Vertex AI: "Training with TPU accelerators" (cloud.google.com/vertex-ai/docs/training/training-with-tpu-vm):
  v2, v3 and v5e, always with one replica.
* TensorFlow on TPUs: "TPU software versions" (cloud.google.com/tpu/docs/runtimes).
* GPUs: "GPU machine types" (docs.cloud.google.com/compute/docs/gpus) and, for the cores allowed with GPUs of N1
  machines, the tables maxGpuCount and maxCpuCount of kubernetes/autoscaler's provider for GCE.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from detloom.schemas.errors import check

ANY_GPU = "nvidia.com/gpu"  # GPUs of any model
TPU_RESOURCE = "google.com/tpu"
TPU_LABEL, TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-tpu-topology"
GPU_LABEL = "cloud.google.com/gke-accelerator"
CLOUD_TPU = "cloud-tpu"  # Vertex AI's machine type for TPU v2 and v3
_TENSORFLOW_TPUS = "Google documents TensorFlow on TPU v2, v3, v4 and v5e only"
_ONE_MACHINE = (
    "a larger slice needs several machines, on which training with a TPU is not supported; for more, use GPUs on "
    "several machines (`detloom manifest`, or vertex.training.workers)"
)


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU model.

    Attributes:
        vertex_type: name in Vertex AI; empty for GPUs that are refused there.
        machines: number of GPUs by machine type; empty for GPUs that are added to N1 machines.
        max_cores: largest number of cores of an N1 machine by number of GPUs; empty if `machines` is set.
    """

    vertex_type: str = ""
    machines: Mapping[str, int] = field(default_factory=dict)
    max_cores: Mapping[int, int] = field(default_factory=dict)

    @property
    def counts(self) -> list[int]:
        """Numbers of GPUs that a machine can have."""
        return sorted({*self.machines.values(), *self.max_cores})


TPU_SLICES: Mapping[str, Mapping[int, str]] = {  # topology by number of chips of one machine
    "tpu-v3": {4: "2x2"},
    "tpu-v4": {4: "2x2x1"},
    "tpu-v5e": {1: "1x1", 4: "2x2", 8: "2x4"},
}
TPU_LABELS = {
    "tpu-v3": "tpu-v3-device",
    "tpu-v4": "tpu-v4-podslice",
    "tpu-v5e": "tpu-v5-lite-podslice",
}  # on GKE's nodes
GPUS: Mapping[str, Gpu] = {  # by the value of GKE's node label
    "nvidia-tesla-p100": Gpu(vertex_type="NVIDIA_TESLA_P100", max_cores={1: 16, 2: 32, 4: 64}),
    "nvidia-tesla-v100": Gpu(vertex_type="NVIDIA_TESLA_V100", max_cores={1: 12, 2: 24, 4: 48, 8: 96}),
    "nvidia-tesla-t4": Gpu(vertex_type="NVIDIA_TESLA_T4", max_cores={1: 24, 2: 48, 4: 96}),
    "nvidia-l4": Gpu(
        vertex_type="NVIDIA_L4",
        machines={f"g2-standard-{cores}": 1 for cores in (4, 8, 12, 16, 32)}
        | {"g2-standard-24": 2, "g2-standard-48": 4, "g2-standard-96": 8},
    ),
    "nvidia-tesla-a100": Gpu(
        vertex_type="NVIDIA_TESLA_A100",
        machines={f"a2-highgpu-{n}g": n for n in (1, 2, 4, 8)} | {"a2-megagpu-16g": 16},
    ),
    "nvidia-a100-80gb": Gpu(vertex_type="NVIDIA_A100_80GB", machines={f"a2-ultragpu-{n}g": n for n in (1, 2, 4, 8)}),
    "nvidia-h100-80gb": Gpu(vertex_type="NVIDIA_H100_80GB", machines={f"a3-highgpu-{n}g": n for n in (1, 2, 4, 8)}),
    "nvidia-h100-mega-80gb": Gpu(machines={"a3-megagpu-8g": 8}),
    "nvidia-h200-141gb": Gpu(machines={"a3-ultragpu-8g": 8}),
}
_NO_BUCKETS = "Vertex AI mounts no buckets on its machines (GoogleCloudPlatform/gcsfuse#4333)"
_BLACKWELL = "the kernels in TensorFlow's packages fail on Blackwell GPUs (tensorflow/tensorflow#99592)"
_REFUSED = {
    "tpu-v2": "GKE has no TPU v2; use Vertex AI (vertex.training)",
    **dict.fromkeys(("tpu-v5p", "tpu-v6e", "tpu7x"), _TENSORFLOW_TPUS),
    **dict.fromkeys(("nvidia-b200", "nvidia-gb200", "nvidia-rtx-pro-6000"), _BLACKWELL),
    **dict.fromkeys(("NVIDIA_B200", "NVIDIA_GB200", "NVIDIA_RTX_PRO_6000"), _BLACKWELL),
    "NVIDIA_H200_141GB": _NO_BUCKETS,
}
_VERTEX_V5E = {f"ct5lp-hightpu-{chips}t": topology for chips, topology in TPU_SLICES["tpu-v5e"].items()}
_VERTEX_TPU_CORES = 8  # TPU v2 or v3 in one machine: four chips with two cores each
_VERTEX_TPUS = ("TPU_V2", "TPU_V3")
_N1 = re.compile(r"n1-(standard|highmem|highcpu)-([0-9]+)")
_GPU_FAMILIES = {  # prefixes of machine types that always have GPUs; why the whole family is refused on Vertex AI
    "a3-ultragpu-": _NO_BUCKETS,
    **dict.fromkeys(("a4-", "a4x-", "g4-"), _BLACKWELL),
    **dict.fromkeys(("a2-", "a3-", "g2-"), ""),
}


def is_tpu(kind: str) -> bool:
    """Return True for the name of a TPU in a run file, supported or not."""
    return kind.startswith("tpu")


def check_accelerator(kind: str, count: int, topology: str) -> None:
    """Raise FieldError unless GKE has such a machine and one container can train on it.

    Args:
        topology: empty to derive it from the count.
    """
    allowed = ", ".join(TPU_SLICES if is_tpu(kind) else GPUS)
    check(kind not in _REFUSED, "type", f"{kind!r}: {_REFUSED.get(kind)}", allowed)
    if not is_tpu(kind):
        _check_gpus(kind, count, topology)
        return
    check(kind in TPU_SLICES, "type", repr(kind), ", ".join((*TPU_SLICES, *GPUS, ANY_GPU)))
    slices = TPU_SLICES[kind]
    _check_topology("topology", topology, slices.values())
    got = f"{count} chips of a {kind}" + (f" with {topology}" if topology else "")
    pairs = " or ".join(f"{chips} with {grid}" for chips, grid in slices.items())
    fits = count in slices and topology in ("", slices[count])
    check(fits, "count", got, f"all chips of a machine: {pairs}", "topology")


def _check_gpus(kind: str, count: int, topology: str) -> None:
    check(not topology, "topology", repr(topology), "nothing with a GPU", "type")
    if kind == ANY_GPU:
        return
    check(kind in GPUS, "type", repr(kind), ", ".join((ANY_GPU, *GPUS, *TPU_SLICES)))
    counts = GPUS[kind].counts
    check(count in counts, "count", f"{count} of {kind}", ", ".join(map(str, counts)), "type")


def check_vertex_machine(
    machine_type: str, accelerator_type: str, accelerator_count: int, tpu_topology: str, workers: int
) -> None:
    """Raise FieldError unless Vertex AI's custom jobs have such a machine and TensorFlow can train on it."""
    has_tpu = machine_type == CLOUD_TPU or machine_type.startswith(("ct", "tpu"))
    if has_tpu:
        check(workers == 1, "workers", workers, "1 with a TPU, whose slice is one worker", "machine_type")
    if machine_type == CLOUD_TPU:
        check(not tpu_topology, "tpu_topology", repr(tpu_topology), f"nothing with {CLOUD_TPU}", "machine_type")
        allowed = f"{' or '.join(_VERTEX_TPUS)} with {CLOUD_TPU}"
        check(accelerator_type in _VERTEX_TPUS, "accelerator_type", repr(accelerator_type), allowed, "machine_type")
        allowed = f"{_VERTEX_TPU_CORES}, the cores of one machine; {_ONE_MACHINE}"
        is_one_machine = accelerator_count == _VERTEX_TPU_CORES
        check(is_one_machine, "accelerator_count", accelerator_count, allowed, "accelerator_type")
    elif has_tpu:
        _check_vertex_v5e(machine_type, accelerator_type, accelerator_count, tpu_topology)
    else:
        check(not tpu_topology, "tpu_topology", repr(tpu_topology), "nothing without a TPU", "machine_type")
        _check_vertex_gpus(machine_type, accelerator_type, accelerator_count)


def _check_vertex_v5e(machine_type: str, accelerator_type: str, accelerator_count: int, tpu_topology: str) -> None:
    pairs = ", ".join(f"{name} with {topology}" for name, topology in _VERTEX_V5E.items())
    allowed = f"{pairs}, or {CLOUD_TPU} with {' or '.join(_VERTEX_TPUS)} ({_TENSORFLOW_TPUS}; Vertex AI has no v4)"
    check(machine_type in _VERTEX_V5E, "machine_type", repr(machine_type), allowed)
    got, allowed = repr(accelerator_type), f"nothing with {machine_type}, which implies it"
    check(not accelerator_type, "accelerator_type", got, allowed, "machine_type")
    check(not accelerator_count, "accelerator_count", accelerator_count, f"0 with {machine_type}", "machine_type")
    _check_topology("tpu_topology", tpu_topology, _VERTEX_V5E.values())
    fits = tpu_topology == _VERTEX_V5E[machine_type]
    check(fits, "tpu_topology", repr(tpu_topology), pairs, "machine_type")


def _check_vertex_gpus(machine_type: str, accelerator_type: str, accelerator_count: int) -> None:
    by_name = {gpu.vertex_type: gpu for gpu in GPUS.values() if gpu.vertex_type}
    if not accelerator_type:
        gpus = [name for name, gpu in by_name.items() if machine_type in gpu.machines]
        allowed = f"the GPU of {machine_type}: {', '.join(gpus)}"
        check(not gpus, "accelerator_type", "nothing", allowed, "machine_type")
        _check_gpu_family(machine_type, by_name)
        allowed = "0 without accelerator_type"
        check(accelerator_count == 0, "accelerator_count", accelerator_count, allowed, "accelerator_type")
        return
    allowed = f"{', '.join(by_name)}; {', '.join(_VERTEX_TPUS)} with machine_type {CLOUD_TPU}"
    reason = f": {_REFUSED[accelerator_type]}" if accelerator_type in _REFUSED else ""
    check(accelerator_type in by_name, "accelerator_type", f"{accelerator_type!r}{reason}", allowed)
    gpu = by_name[accelerator_type]
    if gpu.machines:
        pairs = ", ".join(f"{name} with {count}" for name, count in gpu.machines.items())
        got = f"{accelerator_count} {accelerator_type} with {machine_type}"
        fits = gpu.machines.get(machine_type) == accelerator_count
        check(fits, "accelerator_count" if machine_type in gpu.machines else "machine_type", got, pairs)
        return
    match = _N1.fullmatch(machine_type)
    allowed = f"an N1 machine such as n1-standard-8 for {accelerator_type}"
    check(match is not None, "machine_type", repr(machine_type), allowed, "accelerator_type")
    assert match is not None
    counts = [count for count, cores in gpu.max_cores.items() if int(match[2]) <= cores]
    allowed = f"{', '.join(map(str, counts)) or 'none'} of {accelerator_type} with {machine_type}"
    check(accelerator_count in counts, "accelerator_count", accelerator_count, allowed, "machine_type")


def _check_gpu_family(machine_type: str, gpu_names: Collection[str]) -> None:
    """Raise FieldError for any machine type of a family that has GPUs."""
    family = next((start for start in _GPU_FAMILIES if machine_type.startswith(start)), "")
    reason = _GPU_FAMILIES.get(family)
    got = f"{machine_type!r}: {reason}" if reason else repr(machine_type)
    check(not family, "machine_type", got, f"machine types without a GPU, or with {', '.join(gpu_names)}")


def _check_topology(name: str, topology: str, topologies: Collection[str]) -> None:
    """Raise FieldError for a topology that no machine has; the caller compares it with the count or the machine."""
    allowed = f"{', '.join(topologies)}; {_ONE_MACHINE}"
    check(topology in ("", *topologies), name, repr(topology), allowed)
