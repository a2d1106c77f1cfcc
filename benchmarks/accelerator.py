"""Claim: on a GPU or a TPU, training and exported models give the results of a CPU, and their speed is known.

For each preset, in a process of its own: parity of a step and of detections with the CPU, within bounds for the
device's arithmetic; step time; scaling; input rate; exported model. Writes `results.md` and `results.json`. The exit
code is 1 if a section failed. `--small` runs all of it on two logical CPU devices with a tiny detector.

    python benchmarks/accelerator.py [--preset NAME ...] [--batch-size N] [--out FOLDER] [--small]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tools.device_parity import compare_numbers

if TYPE_CHECKING:
    from tools.device_session import BuiltStep, Session

PRESETS = (
    "ssd_mobilenet_v2_fpnlite_320x320",
    "efficientdet_d0",
    "centernet_resnet50_v2_512x512",
    "faster_rcnn_resnet50_v1_fpn_640x640",
)
NUM_CALLS = 5
EXPORT_BATCH_SIZES = (1, 8)
WARM_UP_SECONDS, INPUT_SECONDS = 1.0, 4.0
Rows = list[dict[str, Any]]


def describe_devices(session: "Session") -> Rows:
    import tensorflow as tf

    cuda = tf.sysconfig.get_build_info().get("cuda_version", "none")
    devices = f"{len(session.devices)} {session.kind}, {session.device_name or 'name unknown'}"
    return [{"devices": devices, "TensorFlow": tf.__version__, "CUDA of its build": cuda}]


def compare_with_cpu(session: "Session") -> Rows:
    """Compare a step, and detections, with those of the CPU in float32, from the same variables and images."""
    from detloom.trainer_module.export.servable import share_matched

    reference = session.reference.numbers(session.values)
    detections = session.reference.detections(session.values)
    arithmetic, bounds = session.bounds(session.precision)
    rows = []
    for jit in session.variants:
        built = session.step_on_device(jit=jit)
        differences = compare_numbers(reference, built.numbers(session.values))
        matched = share_matched(detections, built.detections(session.values), bounds.detections) if not jit else 1.0
        passed = differences["losses"] <= bounds.losses and differences["gradients"] <= bounds.gradients
        rows.append(
            {
                "arithmetic": arithmetic,
                "XLA": jit,
                **differences,
                "equal detections": matched,
                "bounds": f"{bounds.losses:g}, {bounds.gradients:g}, {bounds.min_matched:g}",
                "passed": passed and matched >= bounds.min_matched,
            }
        )
    return rows


def time_steps(session: "Session") -> Rows:
    """Measure the median step on one device, with the transfer of its images but without reading them."""
    rows = []
    for jit in session.variants:
        built = session.step_on_device(jit=jit)
        seconds = step_seconds(built, session)
        rate = session.images / seconds
        row = {"precision": session.precision, "XLA": jit, "images": session.images, "ms": 1000 * seconds}
        rows.append({**row, "images/s": rate, "first step, s": built.first_seconds})
    return rows


def scale_devices(session: "Session") -> Rows:
    """Measure images per second on 1, 2, 4, ... and all devices, with the same number of images on each."""
    from tools.device_session import BuiltStep

    rows: Rows = []
    for count in sorted({*(2**i for i in range(len(session.devices).bit_length())), len(session.devices)}):
        built = BuiltStep(session, session.strategy(count), session.precision, jit=False)
        rate = session.images * count / step_seconds(built, session)
        one = rows[0]["images/s"] if rows else rate
        rows.append({"devices": count, "images/s": rate, "efficiency": rate / (one * count)})
    return rows


def read_input(session: "Session") -> Rows:
    """Measure the images per second that reading, augmentation and batching give when nothing else runs."""
    with session.generated_batches() as batches:
        started = time.perf_counter()
        while time.perf_counter() - started < WARM_UP_SECONDS:
            next(batches)
        num_batches, started = 0, time.perf_counter()
        while (seconds := time.perf_counter() - started) < INPUT_SECONDS:
            next(batches)
            num_batches += 1
    return [{"images/s": num_batches * session.images / seconds}]


def run_exported(session: "Session") -> Rows:
    """Export the detector, run it on the device, and compare its detections with those of the detector on the CPU."""
    import tensorflow as tf

    from detloom.schemas.contracts.detections import SIGNATURE_IMAGES, SIGNATURE_INPUTS
    from detloom.trainer_module.export.saved_model import export_saved_model, share_matched

    session.reference.assign(session.values)
    detector = session.reference.detector
    images = np.resize(session.images_uint8(), (max(EXPORT_BATCH_SIZES), *session.images_uint8().shape[1:]))
    with tempfile.TemporaryDirectory(prefix="detloom-accelerator-") as folder:
        export_saved_model(detector, session.config, Path(folder, "model"))
        loaded = tf.saved_model.load(str(Path(folder, "model")))
    signature = loaded.signatures[SIGNATURE_IMAGES]

    def call(size: int) -> dict[str, np.ndarray]:
        outputs = signature(**{SIGNATURE_INPUTS[SIGNATURE_IMAGES]: tf.constant(images[:size])})
        return {name: value.numpy() for name, value in outputs.items()}

    def expected() -> dict[str, tf.Tensor]:
        prepared, true_hw = detector.preprocessing.prepare(tf.constant(images))
        return detector.detect(prepared, tf.tile(true_hw[None], [len(images), 1]))  # type: ignore[no-any-return]

    with tf.device("/cpu:0"):
        on_cpu = {name: value.numpy() for name, value in tf.function(expected, autograph=False)().items()}
    _, bounds = session.bounds("float32")
    matched = share_matched(on_cpu, call(len(images)), bounds.detections)
    row: dict[str, Any] = {"equal detections": matched, "bound": bounds.min_matched}
    for size in EXPORT_BATCH_SIZES:
        row[f"ms per image, batch {size}"] = 1000 * median_seconds(lambda size=size: call(size)) / size
    return [{**row, "passed": matched >= bounds.min_matched}]


SECTIONS: dict[str, Callable[["Session"], Rows]] = {
    "Machine": describe_devices,
    "Parity with the CPU": compare_with_cpu,
    "Step time": time_steps,
    "Scaling": scale_devices,
    "Input": read_input,
    "Exported model": run_exported,
}


def step_seconds(built: "BuiltStep", session: "Session") -> float:
    """Return the median time of a step; the learning rate is 0, because random weights could diverge."""
    built.numbers(session.values)  # compiles
    built.steps.rate_factor.assign(0.0)
    return median_seconds(lambda: built.steps.run(built.batches, 1))


def median_seconds(call: Callable[[], Any]) -> float:
    """Return the median time of some calls, after two to warm up."""
    for _ in range(2):
        call()
    times = []
    for _ in range(NUM_CALLS):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def measure_preset(preset: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return the rows of each section, or the reason why it failed."""
    from tools.device_session import Session

    session = Session(preset, args)
    results: dict[str, Any] = {}
    for title, section in SECTIONS.items():
        try:
            results[title] = section(session)
        except Exception as error:
            traceback.print_exc()
            results[title] = f"failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return results


def has_failed(results: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return True if a section raised an error or a comparison did not pass."""
    sections = [section for preset in results.values() for section in preset.values()]
    return any(isinstance(rows, str) or not all(row.get("passed", True) for row in rows) for rows in sections)


def format_page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the Markdown page: a table for each section and preset."""
    parts = ["# Accelerator benchmark"]
    for preset, sections in results.items():
        for title, rows in sections.items():
            parts.append(f"## {preset}: {title}")
            parts.append(rows if isinstance(rows, str) else format_table(rows))
    return "\n\n".join(parts) + "\n"


def format_table(rows: Rows) -> str:
    lines: list[Sequence[Any]] = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    shown = [[f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", nargs="+", default=list(PRESETS), metavar="NAME", help="default: one a family")
    parser.add_argument("--batch-size", type=int, help="images on each device; default: an eighth of the preset's")
    parser.add_argument("--precision", choices=["float32", "bfloat16", "float16"], help="default: the preset's")
    parser.add_argument("--without-xla", action="store_true", help="do not compile with XLA: on CPUs it takes minutes")
    parser.add_argument("--without-tensor-float", action="store_true", help="multiply float32 exactly on a GPU")
    parser.add_argument("--out", type=Path, default=Path("accelerator-results"), metavar="FOLDER")
    parser.add_argument("--small", action="store_true", help="two logical CPU devices and a tiny detector")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)  # the file for the results of one preset
    args = parser.parse_args()
    if args.child:
        args.child.write_text(json.dumps(measure_preset(args.preset[0], args)), encoding="utf-8")
        return
    args.out.mkdir(parents=True, exist_ok=True)
    if args.small:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    results: dict[str, Any] = {}
    for preset in ["tiny"] if args.small else args.preset:
        file = args.out / f"{preset}.json"
        file.unlink(missing_ok=True)
        # The last one of several values of an option counts.
        subprocess.run([sys.executable, *sys.argv, "--preset", preset, "--child", str(file)], check=False)
        results[preset] = json.loads(file.read_text()) if file.is_file() else {"all": "failed: the process ended"}
        (args.out / "results.md").write_text(format_page(results), encoding="utf-8")
        (args.out / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(format_page(results))
    sys.exit(1 if has_failed(results) else 0)


if __name__ == "__main__":
    main()
