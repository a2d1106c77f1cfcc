import math
import re

import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.run_file.accelerators import GPUS, TPU_LABELS, TPU_SLICES
from detloom.schemas.run_file.nodes import Accelerator, NodeSettings, Toleration, settings_of
from detloom.schemas.run_file.vertex import VertexTraining


def refused(message, make, **values):
    with pytest.raises(InputError, match=re.compile(message)):
        make(**values)


@pytest.mark.parametrize(
    ("kind", "count", "topology"),
    [
        ("tpu-v4", 4, "2x2x1"),
        ("tpu-v5e", 4, "2x2"),
        ("tpu-v5e", 8, "2x4"),
        ("nvidia-tesla-t4", 4, ""),
        ("nvidia-tesla-a100", 16, ""),
        ("nvidia-h100-80gb", 8, ""),
        ("nvidia-h200-141gb", 8, ""),
        ("nvidia.com/gpu", 3, ""),  # of any model
    ],
)
def test_accelerators_of_one_machine_are_accepted(kind, count, topology):
    assert Accelerator(type=kind, count=count, topology=topology).count == count


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"type": "tpu-v5e", "count": 2}, r"count: got 2 chips of a tpu-v5e, .*1 with 1x1 or 4 with 2x2 or 8 with"),
        ({"type": "tpu-v5e", "count": 4, "topology": "2x4"}, r"count: got 4 chips of a tpu-v5e with 2x4, allowed"),
        (
            {"type": "tpu-v5e", "count": 4, "topology": "4x4"},
            r"topology: got '4x4', allowed: 1x1, 2x2, 2x4; .*detloom manifest",
        ),
        ({"type": "tpu-v4", "count": 4, "topology": "2x2x2"}, r"topology: got '2x2x2', allowed: 2x2x1;"),
        ({"type": "tpu-v2", "count": 4}, r"type: got 'tpu-v2': .*vertex\.training.*tpu-v3, tpu-v4"),
        ({"type": "tpu-v5p", "count": 4}, r"type: got 'tpu-v5p': .*v2, v3, v4 and v5e"),
        ({"type": "tpu-v9", "count": 1}, r"type: got 'tpu-v9', allowed: tpu-v3, tpu-v4, tpu-v5e, nvidia-tesla-p100"),
        ({"type": "nvidia-l4", "count": 3}, r"count: got 3 of nvidia-l4, allowed: 1, 2, 4, 8\."),
        ({"type": "nvidia-tesla-t4", "count": 8}, r"count: got 8 of nvidia-tesla-t4, allowed: 1, 2, 4\."),
        ({"type": "nvidia-l4", "topology": "2x2"}, r"topology: got '2x2', allowed: nothing with a GPU"),
        ({"type": "nvidia-b200", "count": 8}, r"type: got 'nvidia-b200': .*Blackwell.*, allowed: nvidia-tesla-p100"),
        ({"type": "l4"}, r"type: got 'l4', allowed: nvidia\.com/gpu, .*nvidia-l4"),
        ({"type": "nvidia-l4", "count": 0}, r"count: got 0, allowed: 1 or more"),
    ],
)
def test_other_accelerators_are_rejected(values, message):
    refused(message, Accelerator, **values)


def test_chips_of_a_slice_match_the_topology():
    for slices in TPU_SLICES.values():
        assert all(math.prod(map(int, topology.split("x"))) == chips for chips, topology in slices.items())
    assert TPU_LABELS.keys() == TPU_SLICES.keys()


def test_number_of_gpus_matches_the_machine_type():
    for gpu in GPUS.values():
        for machine, count in gpu.machines.items():
            if machine.startswith(("a2-", "a3-")):
                assert int(machine.rpartition("-")[2].removesuffix("g")) == count


@pytest.mark.parametrize("node", ["*", "StatisticsGen", "Pusher"])
def test_accelerator_is_rejected_for_other_nodes(node):
    message = r"accelerator: got nvidia-l4 for .*, allowed: .*Trainer, Tuner, DetectionEvaluator"
    refused(message, NodeSettings, node=node, accelerator=Accelerator(type="nvidia-l4"))


def test_evaluator_accepts_a_gpu_but_no_tpu():
    node = "DetectionEvaluator"
    assert NodeSettings(node=node, accelerator=Accelerator(type="nvidia-l4")).accelerator
    tpu = Accelerator(type="tpu-v5e")
    refused(f"accelerator: got tpu-v5e for {node}", NodeSettings, node=node, accelerator=tpu)


def test_own_entry_of_a_node_overrides_the_common_one():
    batch, gpu = Toleration(key="batch"), Accelerator(type="nvidia-l4")
    nodes = (
        NodeSettings(node="*", cpu="2", memory="4Gi", tolerations=(batch,)),
        NodeSettings(node="Trainer", memory="16Gi", accelerator=gpu),
        NodeSettings(node="Notifier", cpu="500m"),
    )
    trainer = settings_of(nodes, "Trainer")
    assert (trainer.cpu, trainer.memory, trainer.accelerator, trainer.tolerations) == ("2", "16Gi", gpu, (batch,))
    other = settings_of(nodes, "ImportSchemaGen")
    assert (other.cpu, other.memory, other.accelerator) == ("2", "4Gi", None)
    assert [settings_of(nodes, f"{kind}Notifier").cpu for kind in ("Skip", "Failure")] == ["500m", "500m"]
    assert settings_of((), "Trainer").cpu == ""


@pytest.mark.parametrize(
    "values",
    [
        {"machine_type": "n1-standard-8"},
        {"machine_type": "e2-highmem-16", "workers": 4},
        {"machine_type": "n1-standard-8", "accelerator_type": "NVIDIA_TESLA_V100", "accelerator_count": 8},
        {"machine_type": "g2-standard-24", "accelerator_type": "NVIDIA_L4", "accelerator_count": 2, "workers": 3},
        {"machine_type": "a2-megagpu-16g", "accelerator_type": "NVIDIA_TESLA_A100", "accelerator_count": 16},
        {"machine_type": "cloud-tpu", "accelerator_type": "TPU_V3", "accelerator_count": 8},
        {"machine_type": "ct5lp-hightpu-4t", "tpu_topology": "2x2"},
    ],
)
def test_vertex_machines_are_accepted(values):
    assert VertexTraining(**values).machine_type == values["machine_type"]


def vertex(machine_type, accelerator_type="", accelerator_count=0, tpu_topology="", workers=1):
    return {
        "machine_type": machine_type,
        "accelerator_type": accelerator_type,
        "accelerator_count": accelerator_count,
        "tpu_topology": tpu_topology,
        "workers": workers,
    }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (vertex(""), r"machine_type: must not be empty"),
        (vertex("n1-standard-8", "T4", 1), r"accelerator_type: got 'T4', allowed: .*NVIDIA_TESLA_T4.*TPU_V2"),
        # An N1 with 32 cores is too large for one T4: 24 at most.
        (
            vertex("n1-standard-32", "NVIDIA_TESLA_T4", 1),
            r"accelerator_count: got 1, allowed: 2, 4 of NVIDIA_TESLA_T4 with n1-standard-32",
        ),
        (vertex("n1-standard-96", "NVIDIA_TESLA_P100", 4), r"accelerator_count: got 4, allowed: none of"),
        (vertex("n1-standard-8", "NVIDIA_TESLA_T4", 3), r"accelerator_count: got 3, allowed: 1, 2, 4 of"),
        (vertex("e2-standard-8", "NVIDIA_TESLA_T4", 1), r"machine_type: got 'e2-standard-8', allowed: .*n1-standard-8"),
        (
            vertex("n1-standard-8", "NVIDIA_L4", 1),
            r"machine_type: got 1 NVIDIA_L4 with n1-standard-8, allowed: g2-standard-4 with 1, .*g2-standard-96 with 8",
        ),
        (
            vertex("a2-highgpu-2g", "NVIDIA_TESLA_A100", 1),
            r"accelerator_count: got 1 NVIDIA_TESLA_A100 with a2-highgpu",
        ),
        (vertex("a2-highgpu-1g"), r"accelerator_type: got nothing, allowed: .*: NVIDIA_TESLA_A100\."),
        (vertex("g2-standard-7"), r"machine_type: got 'g2-standard-7', allowed: .*NVIDIA_L4"),
        (vertex("a3-megagpu-8g"), r"machine_type: got 'a3-megagpu-8g', allowed: "),
        (vertex("a3-ultragpu-8g"), r"machine_type: got 'a3-ultragpu-8g': .*gcsfuse#4333"),
        (vertex("a4-highgpu-8g"), r"machine_type: got 'a4-highgpu-8g': .*Blackwell"),
        (vertex("n1-standard-8", "", 2), r"accelerator_count: got 2, allowed: 0 without accelerator_type"),
        (vertex("n1-standard-8", tpu_topology="2x2"), r"tpu_topology: got '2x2', allowed: nothing without a TPU"),
        (vertex("cloud-tpu"), r"accelerator_type: got '', allowed: TPU_V2 or TPU_V3 with cloud-tpu"),
        (vertex("cloud-tpu", "TPU_V4_POD", 8), r"accelerator_type: got 'TPU_V4_POD', allowed: TPU_V2 or TPU_V3"),
        (
            vertex("cloud-tpu", "TPU_V3", 32),
            r"accelerator_count: got 32, allowed: 8, .*detloom manifest",
        ),
        (vertex("cloud-tpu", "TPU_V3", 8, workers=2), r"workers: got 2, allowed: 1 with a TPU"),
        (vertex("cloud-tpu", "TPU_V3", 8, "2x2"), r"tpu_topology: got '2x2', allowed: nothing with cloud-tpu"),
        (
            vertex("ct5lp-hightpu-4t", tpu_topology="4x4"),
            r"tpu_topology: got '4x4', allowed: 1x1, 2x2, 2x4;",
        ),
        (
            vertex("ct5lp-hightpu-4t", tpu_topology="2x4"),
            r"tpu_topology: got '2x4', allowed: ct5lp-hightpu-1t with 1x1, ct5lp-hightpu-4t with 2x2, ct5lp-hightpu-8t",
        ),
        (
            vertex("ct5lp-hightpu-4t", "TPU_V5_LITEPOD", 4, "2x2"),
            r"accelerator_type: got 'TPU_V5_LITEPOD', allowed: no",
        ),
        (vertex("ct5lp-hightpu-4t", "", 4, "2x2"), r"accelerator_count: got 4, allowed: 0 with ct5lp-hightpu-4t"),
        (
            vertex("ct6e-standard-1t", tpu_topology="1x1"),
            r"machine_type: got 'ct6e-standard-1t', allowed: ct5lp.*TensorF",
        ),
        (vertex("ct4p-hightpu-4t", tpu_topology="2x2x1"), r"machine_type: .*TPU v2, v3, v4 and v5e"),
    ],
)
def test_other_vertex_machines_are_rejected(values, message):
    refused(message, VertexTraining, **values)
