"""Checks of `detloom doctor --accelerator`: whether a run fits devices that this machine does not have."""

import math
from collections.abc import Iterator
from typing import Any

from detloom.pipelines.commands.findings import Finding, run_probe
from detloom.schemas.errors import InputError
from detloom.schemas.reading.typed_dict import to_canonical_json
from detloom.schemas.run_file.run_file import RunFile
from detloom.trainer_module.accelerators.chips import Accelerator

_PROBE = """
import sys
from detloom.trainer_module.accelerators.step_facts import examine_as_json
print(examine_as_json(*sys.argv[1:]))
"""
_SECONDS = 600  # conversion to HLO takes 20 s to some minutes
_DEFAULT_NUM_CLASSES = 80  # without model.num_classes, the classes are known after ingestion
_USABLE_SHARE = 0.9  # of the memory; the rest is for XLA's buffers and the runtime
_WASTED_SHARE = 0.5


def check_accelerator(run: RunFile, accelerator: Accelerator) -> Iterator[Finding]:
    """Convert the training step for one of the devices and compare its needs with the data sheet."""
    config, name = run.config, accelerator.name
    num_classes = config.model.num_classes or _DEFAULT_NUM_CLASSES
    probe = run_probe(
        _PROBE, to_canonical_json(config), name, str(num_classes), seconds=_SECONDS, what="converting the step"
    )
    if probe.failure:
        yield Finding(
            name=name,
            status="error",
            found=probe.failure,
            wanted="a training step that XLA can compile",
            next_step="correct what the message names; `detloom config check` finds contradictions",
        )
        return
    yield from describe_step(probe.answer, accelerator)


def describe_step(step: dict[str, Any], accelerator: Accelerator) -> Iterator[Finding]:
    """Return the findings of the numbers of `examine_as_json`."""
    name, chip = accelerator.name, accelerator.chip
    yield _shapes(step, name)
    usable = chip.memory_bytes * _USABLE_SHARE
    fits = step["memory_bytes"] <= usable
    yield Finding(
        name=f"{name} memory",
        status="ok" if fits else "error",
        found=f"about {step['memory_bytes'] / 1e9:.1f} of {chip.memory_bytes / 1e9:.0f} GB on each device, with "
        f"{step['images']} images",
        wanted=f"at most {usable / 1e9:.1f} GB",
        next_step="" if fits else "lower train.batch_size, or raise train.gradient_accumulation_steps",
    )
    if chip.kind == "TPU":
        yield from _tpu(step, name)
    part = step["part"]
    bound = "memory traffic" if step["is_bound_by_memory"] else "arithmetic"
    yield Finding(
        name=f"{name} step",
        status="ok",
        found=f"at least {step['seconds'] * 1e3:.2g} ms, limited by {bound}: {part['flops'] / 1e9:.3g} GFLOP and "
        f"{part['moved_bytes'] / 1e9:.2g} GB in {step['precision']}; devices exchange "
        f"{step['gradient_bytes'] / 1e6:.3g} MB of gradients",
    )
    yield _input(step, name)


def _shapes(step: dict[str, Any], name: str) -> Finding:
    found = {
        what: sum(step[function][f"num_{what}"] for function in ("part", "detection"))
        for what in ("dynamic_dimensions", "host_transfers")
    }
    is_static = not any(found.values())
    return Finding(
        name=f"{name} shapes",
        status="ok" if is_static else "error",
        found=", ".join(f"{number} {what.replace('_', ' ')}" for what, number in found.items()),
        wanted="none, in the training step and in the detection",
        next_step="" if is_static else "report it: every detector family should compile",
    )


def _tpu(step: dict[str, Any], name: str) -> Iterator[Finding]:
    is_wasted = step["wasted_share"] > _WASTED_SHARE
    yield Finding(
        name=f"{name} padding",
        status="warning" if is_wasted else "ok",
        found=f"{step['wasted_share']:.0%} of the multiplications pad features to 8 and 128",
        wanted=f"at most {_WASTED_SHARE:.0%}",
        next_step="use a wider network: few features leave most of a TPU idle" if is_wasted else "",
    )
    is_float32 = step["precision"] == "float32"
    yield Finding(
        name=f"{name} precision",
        status="warning" if is_float32 else "ok",
        found=step["precision"],
        wanted="bfloat16, six times as fast",
        next_step="set train.precision to bfloat16_on_tpu" if is_float32 else "",
    )


def _input(step: dict[str, Any], name: str) -> Finding:
    needed, measured = step["images_per_second"], step["input_images_per_second"]
    rate = f"the devices take at most {needed:,.0f} images/s"
    if measured is None:
        return Finding(name=f"{name} input", status="ok", found=f"{rate}; the input of masks was not measured")
    is_enough = measured >= needed
    return Finding(
        name=f"{name} input",
        status="ok" if is_enough else "warning",
        found=f"{rate}, this machine reads {measured:,.0f}",
        wanted="more images than the devices take",
        next_step=""
        if is_enough
        else f"give the machine {math.ceil(needed / measured)} times as many CPUs, or fewer augmentations; "
        "steps usually take two to three times the shortest time",
    )


def require_run(run: RunFile | None) -> RunFile:
    """Return the run.

    Raises:
        InputError: if there is none.
    """
    if run is None:
        raise InputError("--accelerator: got no RUN_FILE, required: the run to check; detloom doctor RUN.yaml ...")
    return run
