"""Claim: an exported model, from images to detections, takes at most 1.3 times the bare network with 90 classes; one
signature serves every batch size.

SSD MobileNetV2 FPNLite 320, EfficientDet-D0 512, CenterNet ResNet-50 V2 512 and Faster R-CNN ResNet-50 FPN 640, 90 and
3 classes, batches of 1 and 8 images of 640x480: the exported model, its network alone on preprocessed images (with two
stages, proposals and crops are part of it), and, if its environment exists (`make peer-odapi`), the Object Detection
API's exported model. Weights come from the reference checkpoints in the shared folder, if it has them. Otherwise they
are random, and then all scores are nearly equal. Each system runs in its own process, and they alternate, so that a
noisy machine slows all. Prints a table and writes JSON.

    python benchmarks/inference.py [--rounds 5] [--models fpnlite d0 centernet faster_rcnn] [--classes 90 3]
                                   [--output inference.json]
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from peers.timed_process import TimedProcess, answer_requests
from tools.surroundings import NO_PEER, PEER_PYTHON, SHARED, describe_machine, has_peer

PEER_SCRIPT = Path(__file__).parent / "peers/odapi_inference.py"
MODELS = {
    "fpnlite": ("ssd_mobilenet_v2_fpnlite_320x320", "ssd_mobilenet_v2_fpnlite_320x320"),
    "d0": ("efficientdet_d0", "ssd_efficientdet_d0_512x512"),
    "centernet": ("centernet_resnet50_v2_512x512", "centernet_resnet50_v2_512x512"),
    "faster_rcnn": ("faster_rcnn_resnet50_v1_fpn_640x640", "faster_rcnn_resnet50_v1_fpn_640x640"),
}  # preset, folder of the reference checkpoint
BATCH_SIZES = {1: 8, 8: 2}  # calls per round


def write_inputs(folder: Path, preset_name: str, num_classes: int, checkpoint: str) -> list[str]:
    """Return the arguments of both processes: configuration, checkpoint or "", images, and a folder for the model."""
    from detloom.schemas.odapi.pipeline_config import format_pipeline_config
    from detloom.schemas.presets.presets import find_preset

    config = find_preset(preset_name).config
    config = replace(config, model=replace(config.model, num_classes=num_classes))
    (folder / "pipeline.config").write_text(format_pipeline_config(config), encoding="utf-8")
    images = SHARED / "parity/input_images_uint8.npy"
    if not images.is_file():
        images = folder / "images.npy"
        np.save(images, np.random.default_rng(0).integers(0, 256, (2, 480, 640, 3), np.uint8))
    return [str(folder / "pipeline.config"), checkpoint, str(images), str(folder)]


def build_calls(config_path: str, checkpoint: str, images_path: str, output: str) -> dict[str, Callable[[int], None]]:
    """Return functions by name that process a batch of the given size."""
    import tensorflow as tf

    from detloom.schemas.contracts.detections import BOXES, SIGNATURE_IMAGES, SIGNATURE_INPUTS
    from detloom.schemas.contracts.label_map import LabelMap
    from detloom.schemas.odapi.pipeline_config import read_pipeline_config
    from detloom.trainer_module.detectors.families import build_detector
    from detloom.trainer_module.export.saved_model import export_saved_model
    from detloom.trainer_module.weights.restore import find_trained, restore

    config = read_pipeline_config(Path(config_path))
    detector = build_detector(config.model, LabelMap.from_names(f"class {i}" for i in range(config.model.num_classes)))
    if checkpoint:
        train = replace(config.train, fine_tune_checkpoint=checkpoint, fine_tune_checkpoint_type="full")
        restore(train, detector, find_trained(train, detector))
    export_saved_model(detector, config, Path(output) / "ours")
    loaded = tf.saved_model.load(f"{output}/ours")
    largest = max(BATCH_SIZES)
    images = np.resize(np.load(images_path), (largest, 480, 640, 3))
    prepared, _ = detector.preprocessing.prepare(tf.constant(images))
    network = tf.function(lambda batch: detector.forward({"image": batch}, training=False))

    def call_exported(batch_size: int, loaded: Any = loaded) -> None:  # `loaded` keeps the variables alive
        signature = loaded.signatures[SIGNATURE_IMAGES]
        signature(**{SIGNATURE_INPUTS[SIGNATURE_IMAGES]: tf.constant(images[:batch_size])})[BOXES].numpy()

    def call_network(batch_size: int) -> None:
        for output in network(prepared[:batch_size]).values():
            output.numpy()

    return {"exported": call_exported, "network": call_network}


def serve(arguments: list[str]) -> None:
    """Answer timing requests in a child process, as the peer's script does."""
    calls = build_calls(*arguments)
    for call in calls.values():
        for batch_size in BATCH_SIZES:
            call(batch_size)
    answer_requests(lambda name, batch_size: calls[name](int(batch_size)))


def measure_ms(process: TimedProcess, name: str, batch_size: int) -> float:
    """Return the median duration of a few calls."""
    return 1000 * statistics.median(process.seconds(f"{name} {batch_size}", BATCH_SIZES[batch_size]))


def measure_model(name: str, num_classes: int, num_rounds: int) -> dict[str, Any]:
    """Return milliseconds by batch size and system, one value per round, and the load of the machine."""
    preset_name, folder = MODELS[name]
    reference = SHARED / "parity" / folder / "checkpoint/ckpt-0"
    checkpoint = str(reference) if num_classes == 90 and reference.with_suffix(".index").is_file() else ""
    with tempfile.TemporaryDirectory() as work:
        arguments = write_inputs(Path(work), preset_name, num_classes, checkpoint)
        ours = TimedProcess([sys.executable, __file__, "--child", *arguments])
        systems = [("network", ours, "network"), ("ours", ours, "exported")]
        if has_peer():
            peer = TimedProcess([str(PEER_PYTHON), str(PEER_SCRIPT), *arguments])
            systems.append(("odapi", peer, "exported"))
        rounds: dict[int, dict[str, list[float]]] = {
            batch_size: {system: [] for system, *_ in systems} for batch_size in BATCH_SIZES
        }
        for number in range(num_rounds):
            for batch_size, times in rounds.items():
                for system, process, call in systems:
                    times[system].append(measure_ms(process, call, batch_size))
            print(f"  {name}, {num_classes} classes: round {number + 1} of {num_rounds}", file=sys.stderr, flush=True)
        for process in {process for _, process, _ in systems}:
            process.close()
    return {"weights": "reference" if checkpoint else "random", "load": psutil.getloadavg()[0], "rounds": rounds}


def summarize(result: dict[str, Any]) -> dict[int, dict[str, float]]:
    """Return the median time of each system and the medians of the rounds' ratios, by batch size."""
    summary = {}
    for batch_size, times in result["rounds"].items():
        row = {system: statistics.median(values) for system, values in times.items()}
        for one, other in (("ours", "network"), ("odapi", "ours")):
            if one in times:
                ratios = [a / b for a, b in zip(times[one], times[other], strict=True)]
                row[f"{one}_to_{other}"] = statistics.median(ratios)
        summary[batch_size] = row
    return summary


def print_table(results: dict[str, dict[str, Any]]) -> None:
    print(f"{'ms':52}{'network':>9}{'ours':>8}{'odapi':>8}  ours/network  odapi/ours")
    for name, result in results.items():
        for batch_size, row in result["summary"].items():
            odapi, ratio = (f"{row[key]:.1f}" if key in row else "-" for key in ("odapi", "odapi_to_ours"))
            label = f"{name}, {result['weights']} weights, batch {batch_size}"
            print(
                f"{label:52}{row['network']:9.1f}{row['ours']:8.1f}{odapi:>8}{row['ours_to_network']:14.2f}{ratio:>12}"
            )
    print(f"load of the machine: {max(result['load'] for result in results.values()):.1f} of {os.cpu_count()} cores")
    if not any("odapi" in row for result in results.values() for row in result["summary"].values()):
        print(f"odapi: {NO_PEER}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--classes", nargs="+", type=int, default=[90, 3])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        serve(args.child)
        return
    results = {}
    for name in args.models:
        for num_classes in args.classes:
            result = measure_model(name, num_classes, args.rounds)
            results[f"{name}, {num_classes} classes"] = {**result, "summary": summarize(result)}
    print_table(results)
    if args.output:
        settings = {"rounds": args.rounds, "calls": BATCH_SIZES, **describe_machine()}
        args.output.write_text(json.dumps({"settings": settings, "models": results}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
