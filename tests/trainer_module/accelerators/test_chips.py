import pytest

from detloom.schemas.errors import InputError
from detloom.trainer_module.accelerators.chips import CHIPS, chip_of_device, parse_accelerator


@pytest.mark.parametrize(
    ("name", "num_devices"), [("gpu-h100-8", 8), ("tpu-v5e-8", 8), ("tpu-v3-8", 8), ("tpu-v4-8", 4), ("gpu-t4-1", 1)]
)
def test_the_number_counts_chips_or_cores(name, num_devices):
    accelerator = parse_accelerator(name)
    assert (accelerator.name, accelerator.num_devices) == (name, num_devices)
    assert accelerator.chip is CHIPS[name.rpartition("-")[0]]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("h100", "allowed: CHIP-NUMBER with the chips gpu-t4,"),
        ("gpu-x-1", "allowed: CHIP-NUMBER"),
        ("tpu-v5e-0", "allowed for tpu-v5e: 1 or more"),
        ("tpu-v4-3", r"allowed for tpu-v4: a multiple of 2 \(cores\)"),
    ],
)
def test_unknown_names_are_refused(name, message):
    with pytest.raises(InputError, match=message):
        parse_accelerator(name)


@pytest.mark.parametrize(
    ("device_name", "chip"),
    [
        ("Tesla T4", "gpu-t4"),
        ("Tesla V100-SXM2-16GB", "gpu-v100"),
        ("NVIDIA L4", "gpu-l4"),
        ("NVIDIA A100-SXM4-40GB", "gpu-a100"),
        ("NVIDIA H100 80GB HBM3", "gpu-h100"),
        ("NVIDIA H200", "gpu-h200"),
        ("v3-8", "tpu-v3"),
        ("v5litepod-8", "tpu-v5e"),
        ("v5p-8", "tpu-v5p"),
        ("NVIDIA L40S", None),
        ("NVIDIA GH200 480GB", None),
        ("", None),
    ],
)
def test_a_chip_is_found_by_the_name_of_the_device(device_name, chip):
    assert chip_of_device(device_name) == chip


def test_matrix_products_need_hundreds_of_operations_for_each_byte_of_memory():
    """The ratio of the two columns of a data sheet; a slip of a factor of 1000 would be visible."""
    for chip in CHIPS.values():
        assert 50 < chip.bfloat16_flops / chip.memory_bytes_per_second < 600
        assert chip.float32_flops < chip.bfloat16_flops
