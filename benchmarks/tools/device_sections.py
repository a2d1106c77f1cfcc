"""The sections of `benchmarks/accelerator.py` that run on the devices. Each returns numbers that JSON can hold.

A section's result has a `status`: "passed", "failed", "measured" (no bound) or "skipped"; failed and skipped ones have
a `cause`.
"""

import json
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tools.accelerator_page import TITLES
from tools.device_parity import check_parity, compare_numbers
from tools.device_session import BuiltStep, Session, Settings

from detloom.schemas.contracts.detections import BOXES, NUM_DETECTIONS, SIGNATURE_IMAGES, SIGNATURE_INPUTS
from detloom.schemas.contracts.ground_truth import IMAGE
from detloom.trainer_module.accelerators.chips import CHIPS
from detloom.trainer_module.accelerators.step_facts import examine_step
from detloom.trainer_module.export.saved_model import export_saved_model, share_matched
from detloom.trainer_module.training.step_time import measure_input_rate, seconds_per_step

Result = dict[str, Any]
NUM_CALLS = 5
EXPORT_BATCH_SIZES = (1, 8)


def run_sections(settings: Settings, names: Sequence[str], folder: Path) -> None:
    """Run sections one after the other; write the result of each to `folder/NAME.json`."""
    session = Session(settings)
    for name in names:
        print(f"  {'tiny detector' if settings.is_small else settings.preset}: {TITLES[name]}", flush=True)
        started = time.perf_counter()
        try:
            result = SECTIONS[name](session)
        except Exception as error:
            traceback.print_exc()
            result = {"status": "failed", "cause": describe_error(error)}
        result["seconds"] = time.perf_counter() - started
        unfinished = folder / f"{name}.unfinished"
        unfinished.write_text(json.dumps(result), encoding="utf-8")
        unfinished.rename(folder / f"{name}.json")


def describe_error(error: Exception) -> str:
    """Return the kind of an error and the beginning of its message, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def describe_devices(session: Session) -> Result:
    return {
        "status": "measured",
        "kind": session.kind,
        "num_devices": len(session.devices),
        "device": session.device_name or "name unknown",
        "chip": session.chip,
        "tensorflow": tf.__version__,
        "cuda": tf.sysconfig.get_build_info().get("cuda_version", "none"),
    }


def measure_parity(session: Session) -> Result:
    """Compare a step, and detections, with those of the CPU in float32, from the same variables and images."""
    reference = session.reference.numbers(session.values)
    detections = session.reference.detections(session.values)
    if not detections[NUM_DETECTIONS].any():
        raise RuntimeError("the detector finds nothing on the CPU, so that detections cannot be compared")
    arithmetic, bounds = session.bounds(session.precision)

    def compare(jit: bool) -> Result:
        built = session.step_on_device(jit=jit)
        differences = compare_numbers(reference, built.numbers(session.values))
        if jit:
            return check_parity(bounds, differences)
        return check_parity(
            bounds, differences, share_matched(detections, built.detections(session.values), bounds.detections)
        )

    rows, causes = _for_each_variant(session, compare)
    if not all(row["passed"] for row in rows):
        causes.append("differences are above the bounds")
    return {
        "status": "failed" if causes else "passed",
        "cause": "; ".join(causes),
        "rows": [{"arithmetic": arithmetic, **row} for row in rows],
    }


def measure_steps(session: Session) -> Result:
    """Measure the step without and with XLA on one device, and compare it with the roofline of the data sheet."""
    with tf.device("/cpu:0"):
        facts = examine_step(session.config, session.label_map, 1, on_tpu=session.kind == "TPU")
    flops = facts.part.flops * facts.num_parts
    chip = CHIPS[session.chip] if session.chip else None

    def measure(jit: bool) -> Result:
        built = session.step_on_device(jit=jit)
        seconds = _step_seconds(built, session)
        return {
            "ms": 1000 * seconds,
            "first_seconds": built.first_seconds,
            "images_per_second": session.images / seconds,
            "flops_per_second": flops / seconds,
            "share_of_roofline": facts.seconds(chip) / seconds if chip else None,
        }

    rows, causes = _for_each_variant(session, measure)
    return {
        "status": "failed" if causes else "measured",
        "cause": "; ".join(causes),
        "flops": flops,
        "bytes": facts.part.moved_bytes * facts.num_parts,
        "roofline_ms": 1000 * facts.seconds(chip) if chip else None,
        "is_bound_by_memory": facts.is_bound_by_memory(chip) if chip else None,
        "images": session.images,
        "precision": session.precision,
        "rows": rows,
    }


def measure_scaling(session: Session) -> Result:
    """Measure images per second on 1, 2, 4, ... and all devices, with the same number of images on each."""
    counts = device_counts(len(session.devices))
    if len(counts) == 1:
        return {"status": "skipped", "cause": "the machine has one device"}
    rows = []
    for count in counts:
        strategy = session.strategy(count)
        built = (
            session.step_on_device(jit=False)
            if count == 1
            else BuiltStep(session, strategy, session.precision, jit=False)
        )
        seconds = _step_seconds(built, session)
        rate = session.images * count / seconds
        one = rows[0]["images_per_second"] if rows else rate
        rows.append({"devices": count, "images_per_second": rate, "efficiency": rate / (one * count)})
    return {"status": "measured", "rows": rows}


def device_counts(num_devices: int) -> list[int]:
    """Return 1, 2, 4, ... and the number of devices."""
    return sorted({*(2**i for i in range(num_devices.bit_length())), num_devices})


def measure_input(session: Session) -> Result:
    """Measure the images per second of the input pipeline, and the transfer of a batch to the device."""
    rate = measure_input_rate(session.config, session.label_map, session.stored_hw)
    transfers = {}
    if session.kind != "CPU":
        for dtype in (np.uint8, np.float32):
            images = session.batch[IMAGE].astype(dtype)
            seconds = _transfer_seconds(images, session.devices[0])
            transfers[np.dtype(dtype).name] = {"ms": 1000 * seconds, "bytes_per_second": images.nbytes / seconds}
    return {"status": "measured", "images_per_second": rate, "images": session.images, "transfers": transfers}


def measure_exported(session: Session) -> Result:
    """Export the detector, run it on the device, and compare its detections with those of the detector on the CPU."""
    if session.kind == "TPU":
        return {"status": "skipped", "cause": "a SavedModel runs on the host of a TPU"}
    reference = session.reference
    reference.assign(session.values)
    images = np.clip(np.rint(session.batch[IMAGE]), 0, 255).astype(np.uint8)
    images = np.resize(images, (max(EXPORT_BATCH_SIZES), *images.shape[1:]))
    with tempfile.TemporaryDirectory(prefix="detloom-accelerator-") as folder:
        model_dir = Path(folder, "model")
        export_saved_model(reference.detector, session.config, model_dir)
        loaded = tf.saved_model.load(str(model_dir))
    signature = loaded.signatures[SIGNATURE_IMAGES]

    def call(size: int) -> dict[str, tf.Tensor]:
        outputs: dict[str, tf.Tensor] = signature(**{SIGNATURE_INPUTS[SIGNATURE_IMAGES]: tf.constant(images[:size])})
        outputs[BOXES].numpy()  # waits for the device
        return outputs

    def expected() -> dict[str, tf.Tensor]:
        prepared, true_hw = reference.detector.preprocessing.prepare(tf.constant(images))
        result: dict[str, tf.Tensor] = reference.detector.detect(prepared, tf.tile(true_hw[None], [len(images), 1]))
        return result

    with tf.device("/cpu:0"):
        wanted = {name: value.numpy() for name, value in tf.function(expected, autograph=False)().items()}
    arithmetic, bounds = session.bounds("float32")
    matched = share_matched(
        wanted, {name: value.numpy() for name, value in call(len(images)).items()}, bounds.detections
    )
    rows = []
    for size in EXPORT_BATCH_SIZES:
        seconds = _median_seconds(lambda size=size: call(size), session.settings.seconds)
        rows.append({"batch_size": size, "ms_per_image": 1000 * seconds / size})
    passed = matched >= bounds.min_matched
    return {
        "status": "passed" if passed else "failed",
        "cause": "" if passed else "too few detections are equal",
        "matched": matched,
        "matched_bound": bounds.min_matched,
        "detections_tolerance": bounds.detections,
        "arithmetic": arithmetic,
        "rows": rows,
    }


def _for_each_variant(session: Session, function: Callable[[bool], Result]) -> tuple[list[Result], list[str]]:
    """Return the rows without and with XLA, and the cause of each that failed."""
    rows, causes = [], []
    for jit in session.variants:
        try:
            rows.append({"xla": jit, **function(jit)})
        except Exception as error:
            traceback.print_exc()
            causes.append(f"{'with' if jit else 'without'} XLA: {describe_error(error)}")
    return rows, causes


def _step_seconds(built: BuiltStep, session: Session) -> float:
    """Return the median time of a step.

    Raises:
        RuntimeError: if a step is not finite; the next ones would do nothing.
    """
    built.numbers(session.values)  # compiles
    built.steps.rate_factor.assign(0.0)  # random weights could diverge
    one = min(seconds_per_step(built.steps, built.batches, 2, 1))
    count = int(np.clip(session.settings.seconds / NUM_CALLS / one, 1, 100))
    seconds = seconds_per_step(built.steps, built.batches, NUM_CALLS, count)
    if not built.steps.run(built.batches, 1).is_finite:
        raise RuntimeError("the loss is not finite after some steps")
    return statistics.median(seconds)


def _transfer_seconds(array: np.ndarray, device: str) -> float:
    with tf.device("/cpu:0"):
        host = tf.constant(array)

    def copy() -> None:
        with tf.device(device):
            tf.identity(host)
        tf.test.experimental.sync_devices()

    return _median_seconds(copy, 1.0)


def _median_seconds(call: Callable[[], Any], seconds: float) -> float:
    """Return the median time of calls for some seconds, at least `NUM_CALLS`, after two to warm up."""
    for _ in range(2):
        call()
    times: list[float] = []
    while len(times) < NUM_CALLS or sum(times) < seconds:
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


SECTIONS: dict[str, Callable[[Session], Result]] = {
    "machine": describe_devices,
    "parity": measure_parity,
    "step": measure_steps,
    "scaling": measure_scaling,
    "input": measure_input,
    "export": measure_exported,
}
