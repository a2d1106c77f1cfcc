"""GPUs and TPUs that TensorFlow can train on, and their machine types on GKE and in Vertex AI's custom jobs.

A TPU slice must fit into one machine, which has at most 8 chips: the training strategy uses the TPU of its own machine.
TensorFlow on a slice of several machines needs a service on each of them, which neither GKE nor Vertex AI starts for a
custom image.

Sources, read as stored copies in November 2026; none of these machines was tested:

* TPUs on GKE: "Plan TPUs in GKE" (cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus), compared row by row
  with the tables of GKE's cluster autoscaler (package machinetypes: fixedTpuCount, singleHostTopologyMap,
  supportedTpuTypes; it has no v2) and of GoogleCloudPlatform/PerfKitBenchmarker (TPU_MACHINE_TO_ACCELERATOR_MAP).
* TPUs on Vertex AI: "Training with TPU accelerators" (cloud.google.com/vertex-ai/docs/training/training-with-tpu-vm):
  v2, v3 and v5e, always with one replica; v5e needs TensorFlow 2.15 or later.
* TensorFlow on TPUs: "TPU software versions" (cloud.google.com/tpu/docs/runtimes).
* GPUs: "GPU machine types" (docs.cloud.google.com/compute/docs/gpus) and, for the cores allowed with GPUs of N1
  machines, the tables maxGpuCount and maxCpuCount of kubernetes/autoscaler's provider for GCE.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from detloom.schemas.errors import check

ANY_GPU = "nvidia.com/gpu"  # GPUs of any model
TPU_RESOURCE = "google.com/tpu"
TPU_LABEL, TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-tpu-topology"
GPU_LABEL = "cloud.google.com/gke-accelerator"
CLOUD_TPU = "cloud-tpu"  # Vertex AI's machine type for TPU v2 and v3
_TOPOLOGY = re.compile(r"[1-9][0-9]*(x[1-9][0-9]*){1,2}")
_ONLY_THESE = "Google documents TensorFlow on TPU v2, v3, v4 and v5e only"


@dataclass(frozen=True, kw_only=True)
class TpuSlice:
    """A TPU slice of one machine.

    Attributes:
        label: value of GKE's node label `cloud.google.com/gke-tpu-accelerator`.
        topology: grid of the chips, such as 2x4.
        num_chips: number of chips of the machine; one container must use all of them.
    """

    machine_type: str
    label: str
    topology: str
    num_chips: int


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU model.

    Attributes:
        vertex_type: name in Vertex AI.
        counts: allowed numbers of GPUs per machine.
        machines: number of GPUs by machine type, for machine types with a fixed number; empty for GPUs of N1 machines.
        max_cores: largest number of cores of an N1 machine by number of GPUs; empty if `machines` is set.
    """

    vertex_type: str
    counts: tuple[int, ...]
    machines: Mapping[str, int]
    max_cores: Mapping[int, int]


def _of_n1(vertex_type: str, max_cores: Mapping[int, int]) -> Gpu:
    return Gpu(vertex_type=vertex_type, counts=tuple(max_cores), machines={}, max_cores=max_cores)


def _with_machines(vertex_type: str, machines: Mapping[str, int]) -> Gpu:
    return Gpu(vertex_type=vertex_type, counts=tuple(sorted(set(machines.values()))), machines=machines, max_cores={})


TPU_SLICES: Mapping[str, tuple[TpuSlice, ...]] = {
    "tpu-v3": (TpuSlice(machine_type="ct3-hightpu-4t", label="tpu-v3-device", topology="2x2", num_chips=4),),
    "tpu-v4": (TpuSlice(machine_type="ct4p-hightpu-4t", label="tpu-v4-podslice", topology="2x2x1", num_chips=4),),
    "tpu-v5e": (
        TpuSlice(machine_type="ct5lp-hightpu-1t", label="tpu-v5-lite-podslice", topology="1x1", num_chips=1),
        TpuSlice(machine_type="ct5lp-hightpu-4t", label="tpu-v5-lite-podslice", topology="2x2", num_chips=4),
        TpuSlice(machine_type="ct5lp-hightpu-8t", label="tpu-v5-lite-podslice", topology="2x4", num_chips=8),
    ),
}
GPUS: Mapping[str, Gpu] = {  # by the value of GKE's node label
    "nvidia-tesla-p100": _of_n1("NVIDIA_TESLA_P100", {1: 16, 2: 32, 4: 64}),
    "nvidia-tesla-v100": _of_n1("NVIDIA_TESLA_V100", {1: 12, 2: 24, 4: 48, 8: 96}),
    "nvidia-tesla-t4": _of_n1("NVIDIA_TESLA_T4", {1: 24, 2: 48, 4: 96}),
    "nvidia-l4": _with_machines(
        "NVIDIA_L4",
        {f"g2-standard-{cores}": 1 for cores in (4, 8, 12, 16, 32)}
        | {"g2-standard-24": 2, "g2-standard-48": 4, "g2-standard-96": 8},
    ),
    "nvidia-tesla-a100": _with_machines(
        "NVIDIA_TESLA_A100", {f"a2-highgpu-{n}g": n for n in (1, 2, 4, 8)} | {"a2-megagpu-16g": 16}
    ),
    "nvidia-a100-80gb": _with_machines("NVIDIA_A100_80GB", {f"a2-ultragpu-{n}g": n for n in (1, 2, 4, 8)}),
    "nvidia-h100-80gb": _with_machines("NVIDIA_H100_80GB", {f"a3-highgpu-{n}g": n for n in (1, 2, 4, 8)}),
}
_REFUSED_ON_GKE = {
    "tpu-v2": "GKE has no TPU v2; use Vertex AI (vertex.training)",
    **dict.fromkeys(("tpu-v5p", "tpu-v6e", "tpu7x"), _ONLY_THESE),
}
_VERTEX_TPU_CORES = 8  # TPU v2 or v3 in one machine: four chips with two cores each
_VERTEX_TPUS = ("TPU_V2", "TPU_V3")
_N1 = re.compile(r"n1-(standard|highmem|highcpu)-([0-9]+)")
_GPU_FAMILIES = ("a2-", "a3-", "a4-", "a4x-", "g2-", "g4-")  # machine types that always have GPUs


def is_tpu(kind: str) -> bool:
    """Return True for the name of a TPU in a run file, supported or not."""
    return kind.startswith("tpu")


def find_slice(kind: str, count: int) -> TpuSlice:
    """Return the slice with a number of chips; the pair must have been checked."""
    return next(each for each in TPU_SLICES[kind] if each.num_chips == count)


def check_accelerator(kind: str, count: int, topology: str) -> None:
    """Raise FieldError unless GKE has such a machine and one container can train on it.

    Args:
        topology: empty to derive it from the count.
    """
    if not is_tpu(kind):
        _check_gpus(kind, count, topology)
        return
    check(kind not in _REFUSED_ON_GKE, "type", f"{kind!r}: {_REFUSED_ON_GKE.get(kind)}", ", ".join(TPU_SLICES))
    check(kind in TPU_SLICES, "type", repr(kind), ", ".join((*TPU_SLICES, *GPUS, ANY_GPU)))
    slices = TPU_SLICES[kind]
    _check_one_machine("topology", topology, [each.topology for each in slices])
    pairs = " or ".join(f"{each.num_chips} with {each.topology} ({each.machine_type})" for each in slices)
    got = f"{count} chips of a {kind}" + (f" with {topology}" if topology else "")
    fits = any(each.num_chips == count and topology in ("", each.topology) for each in slices)
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
        allowed = f"{_VERTEX_TPU_CORES}, the cores of one machine; {_why_one_machine()}"
        is_one_machine = accelerator_count == _VERTEX_TPU_CORES
        check(is_one_machine, "accelerator_count", accelerator_count, allowed, "accelerator_type")
    elif has_tpu:
        _check_vertex_v5e(machine_type, accelerator_type, accelerator_count, tpu_topology)
    else:
        check(not tpu_topology, "tpu_topology", repr(tpu_topology), "nothing without a TPU", "machine_type")
        _check_vertex_gpus(machine_type, accelerator_type, accelerator_count)


def _check_vertex_v5e(machine_type: str, accelerator_type: str, accelerator_count: int, tpu_topology: str) -> None:
    slices = {each.machine_type: each for each in TPU_SLICES["tpu-v5e"]}
    pairs = ", ".join(f"{name} with {each.topology}" for name, each in slices.items())
    allowed = f"{pairs}, or {CLOUD_TPU} with {' or '.join(_VERTEX_TPUS)} ({_ONLY_THESE}; Vertex AI has no v4)"
    check(machine_type in slices, "machine_type", repr(machine_type), allowed)
    got, allowed = repr(accelerator_type), f"nothing with {machine_type}, which implies it"
    check(not accelerator_type, "accelerator_type", got, allowed, "machine_type")
    check(not accelerator_count, "accelerator_count", accelerator_count, f"0 with {machine_type}", "machine_type")
    _check_one_machine("tpu_topology", tpu_topology, [each.topology for each in slices.values()])
    fits = tpu_topology == slices[machine_type].topology
    check(fits, "tpu_topology", repr(tpu_topology), pairs, "machine_type")


def _check_vertex_gpus(machine_type: str, accelerator_type: str, accelerator_count: int) -> None:
    by_name = {gpu.vertex_type: gpu for gpu in GPUS.values()}
    if not accelerator_type:
        needs = [name for name, gpu in by_name.items() if machine_type in gpu.machines]
        has_gpus = bool(needs) or machine_type.startswith(_GPU_FAMILIES)
        allowed = f"the GPU of {machine_type}: {', '.join(needs) or ', '.join(by_name)}"
        check(not has_gpus, "accelerator_type", "nothing", allowed, "machine_type")
        allowed = "0 without accelerator_type"
        check(accelerator_count == 0, "accelerator_count", accelerator_count, allowed, "accelerator_type")
        return
    allowed = f"{', '.join(by_name)}; {', '.join(_VERTEX_TPUS)} with machine_type {CLOUD_TPU}"
    check(accelerator_type in by_name, "accelerator_type", repr(accelerator_type), allowed)
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


def _check_one_machine(field: str, topology: str, known: list[str]) -> None:
    """Raise FieldError for a slice of several machines; the caller checks the topology of one machine."""
    if topology and topology not in known:
        allowed = ", ".join(known)
        check(bool(_TOPOLOGY.fullmatch(topology)), field, repr(topology), allowed)
        check(False, field, f"{topology!r}, which needs several machines", f"{allowed}; {_why_one_machine()}")


def _why_one_machine() -> str:
    return (
        "a larger slice needs several machines, on which this version cannot train with a TPU; for more, use GPUs on "
        "several machines (`detloom manifest`, or vertex.training.workers)"
    )
