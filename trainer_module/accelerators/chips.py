"""Data sheets of accelerators. This module does not import TensorFlow.

TPUs: the page of each version at https://cloud.google.com/tpu/docs/system-architecture-tpu-vm. GPUs: the data sheets of
NVIDIA, without sparsity.
"""

import re
from dataclasses import dataclass
from typing import Literal

from detloom.schemas.errors import InputError

_TERA, _GIGA = 1e12, 1e9
_NAME = re.compile(r"((?:gpu|tpu)-[a-z0-9]+)-(\d{1,5})")
_TPU_TYPES = {"v5litepod": "v5e"}  # names of Cloud TPU that differ from ours


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One device, as TensorFlow counts devices.

    Attributes:
        bfloat16_flops: per second, of matrix products in bfloat16 with float32 sums (V100 and T4: float16).
        float32_flops: the same in float32; on GPUs since A100 in TensorFloat-32, which TensorFlow uses for float32.
            TPUs have no such mode and compute several products in bfloat16.
        memory_bytes: of the device.
        memory_bytes_per_second: of reading and writing it.
        units_per_device: the number in the name of a TPU counts these.
    """

    kind: Literal["GPU", "TPU"]
    bfloat16_flops: float
    float32_flops: float
    memory_bytes: float
    memory_bytes_per_second: float
    units_per_device: int = 1


def _gpu(bfloat16: float, float32: float, memory: float, bandwidth: float) -> Chip:
    return Chip(
        kind="GPU",
        bfloat16_flops=bfloat16 * _TERA,
        float32_flops=float32 * _TERA,
        memory_bytes=memory * _GIGA,
        memory_bytes_per_second=bandwidth * _GIGA,
    )


def _tpu(bfloat16: float, memory: float, bandwidth: float, units: int = 1) -> Chip:
    return Chip(
        kind="TPU",
        bfloat16_flops=bfloat16 * _TERA,
        float32_flops=bfloat16 * _TERA / 6,  # XLA's highest precision: six products in bfloat16
        memory_bytes=memory * 2**30,
        memory_bytes_per_second=bandwidth * _GIGA,
        units_per_device=units,
    )


CHIPS = {
    "gpu-t4": _gpu(65, 8.1, 16, 320),
    "gpu-v100": _gpu(125, 15.7, 16, 900),
    "gpu-l4": _gpu(121, 60, 24, 300),
    "gpu-a100": _gpu(312, 156, 40, 1555),
    "gpu-h100": _gpu(989, 494, 80, 3350),
    "gpu-h200": _gpu(989, 494, 141, 4800),
    "tpu-v2": _tpu(23, 8, 350),  # TensorFlow sees the two cores of a chip as devices, and the name counts them
    "tpu-v3": _tpu(61.5, 16, 450),
    "tpu-v4": _tpu(275, 32, 1228, units=2),  # the two cores are one device, but the name counts them
    "tpu-v5e": _tpu(197, 16, 819),
    "tpu-v5p": _tpu(459, 95, 2765, units=2),
    "tpu-v6e": _tpu(918, 32, 1640),
}


def chip_of_device(device_name: str) -> str | None:
    """Return the chip in a device's name, such as "NVIDIA A100-SXM4-40GB" or "v5litepod-8"; None if it is unknown."""
    words = re.findall(r"[a-z0-9]+", device_name.lower())
    names = (f"{kind}-{_TPU_TYPES.get(word, word)}" for word in words for kind in ("gpu", "tpu"))
    return next((name for name in names if name in CHIPS), None)


@dataclass(frozen=True)
class Accelerator:
    """Several equal devices."""

    name: str
    chip: Chip
    num_devices: int


def parse_accelerator(name: str) -> Accelerator:
    """Parse a name such as "tpu-v5e-8" or "gpu-h100-8".

    Raises:
        InputError: for an unknown chip or an impossible number.
    """
    match = _NAME.fullmatch(name)
    chip = CHIPS.get(match[1]) if match else None
    if match is None or chip is None:
        raise InputError(f"accelerator: got {name!r}, allowed: CHIP-NUMBER with the chips {', '.join(CHIPS)}.")
    devices, rest = divmod(int(match[2]), chip.units_per_device)
    if rest or not devices:
        allowed = "1 or more" if chip.units_per_device == 1 else f"a multiple of {chip.units_per_device} (cores)"
        raise InputError(f"accelerator: got {name!r}, allowed for {match[1]}: {allowed}.")
    return Accelerator(name, chip, devices)
