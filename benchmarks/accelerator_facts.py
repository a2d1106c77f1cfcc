"""Claim: the training step of every detector family has static shapes and no transfer to the host.

For each preset, at its own batch size on eight devices: what the step and the detection cost according to their HLO,
the largest rate that an H100 and a TPU v5e allow, and whether the memory suffices. Nothing runs on an accelerator.
Prints a Markdown table; a preset takes one to ten minutes.

    python benchmarks/accelerator_facts.py [PRESET ...]
"""

import subprocess
import sys
from typing import Any

FAMILIES = (
    "ssd_mobilenet_v2_fpnlite_320x320",
    "ssd_resnet50_v1_fpn_640x640",
    "efficientdet_d0",
    "efficientdet_lite0",
    "centernet_resnet50_v2_512x512",
    "faster_rcnn_resnet50_v1_640x640",
    "faster_rcnn_resnet50_v1_fpn_640x640",
)
NUM_DEVICES, NUM_CLASSES = 8, 90
HEADINGS = (
    "preset",
    "images per device",
    "dynamic dimensions",
    "transfers to the host",
    "GFLOP per image, step",
    "detection",
    "GB per image, step",
    "H100: images/s per device at most",
    "memory",
    "v5e: images/s per device at most",
    "memory",
)


def main(presets: list[str]) -> None:
    """Examine each preset in a process of its own, because TensorFlow does not free the memory of graphs."""
    print(row(HEADINGS), row(["---"] * len(HEADINGS)), sep="\n", flush=True)
    for preset in presets or FAMILIES:
        done = subprocess.run(
            [sys.executable, __file__, "--one", preset], stdout=subprocess.PIPE, text=True, check=False
        )
        text = done.stdout.strip().splitlines()
        print(text[-1] if done.returncode == 0 and text else row([preset, "failed"]), flush=True)


def examine(preset: str) -> list[Any]:
    """Return the cells of a row; shapes and transfers are those of step and detection together."""
    from dataclasses import replace

    from detloom.schemas.presets.presets import find_preset
    from detloom.trainer_module.accelerators.chips import parse_accelerator
    from detloom.trainer_module.accelerators.step_facts import examine_step, label_map_of

    config = find_preset(preset).config
    batch_size = -(-config.train.batch_size // NUM_DEVICES) * NUM_DEVICES
    config = replace(config, train=replace(config.train, batch_size=batch_size, precision="bfloat16"))
    labels = label_map_of(config, config.model.num_classes or NUM_CLASSES)
    h100, v5e = (parse_accelerator(f"{name}-{NUM_DEVICES}") for name in ("gpu-h100", "tpu-v5e"))
    facts = examine_step(config, labels, NUM_DEVICES, on_tpu=False)
    both = facts.part, facts.detection
    cells = [
        preset,
        facts.images,
        sum(each.num_dynamic_dimensions for each in both),
        sum(each.num_host_transfers for each in both),
        f"{facts.part.flops * facts.num_parts / facts.images / 1e9:.1f}",
        f"{facts.detection.flops / 1e9:.1f}",
        f"{facts.part.moved_bytes * facts.num_parts / facts.images / 1e9:.2f}",
    ]
    for device in (h100, v5e):
        bound = "memory traffic" if facts.is_bound_by_memory(device.chip) else "arithmetic"
        memory = f"{facts.memory_bytes / 1e9:.1f} of {device.chip.memory_bytes / 1e9:.0f} GB"
        cells += [f"{facts.images / facts.seconds(device.chip):,.0f} ({bound})", memory]
    return cells


def row(cells: Any) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(row(examine(sys.argv[2])))
    else:
        main(sys.argv[1:])
