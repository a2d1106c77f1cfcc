"""Claim: images to detections take at most 2.5 times the bare network in ONNX Runtime as a SavedModel, 1.15 times it as
model.onnx in ONNX Runtime, and 1.2 times the bare network in OpenVINO as model.onnx there; all on the same CPUs.

SSD MobileNetV2 FPNLite 320, EfficientDet-Lite0 320 and D0 512, CenterNet ResNet-50 V2 512, and the detector of
`detloom run` (EfficientDet-Lite0, 288 x 416, soft suppression), 90 classes and 1 class, batches of 1 and 8 images of
640 x 480. A bare network takes its normalized input, of its size, and returns its raw outputs. Weights come from the
reference checkpoints in the shared folder, if it has them, and for `run` from --trained; otherwise the kernels of the
heads are random, with which soft suppression has to look at all boxes. Each runtime has its own process, and they
alternate, so that a noisy machine slows all. Prints a table, writes JSON.

    python benchmarks/inference.py [--rounds 5] [--models fpnlite lite0 d0 centernet run] [--classes 90 1]
                                   [--suppression hard soft] [--trained VERSION_FOLDER] [--output inference.json]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from peers.timed_process import TimedProcess, answer_requests
from tools.surroundings import SHARED, describe_machine

MODELS = {
    "fpnlite": ("ssd_mobilenet_v2_fpnlite_320x320", "ssd_mobilenet_v2_fpnlite_320x320"),
    "lite0": ("efficientdet_lite0", ""),
    "d0": ("efficientdet_d0", "ssd_efficientdet_d0_512x512"),
    "centernet": ("centernet_resnet50_v2_512x512", "centernet_resnet50_v2_512x512"),
    "run": ("efficientdet_lite0", ""),
}  # preset, folder of the reference checkpoint
BATCH_SIZES = {1: 8, 8: 2}  # calls per round
RATIOS = {"savedmodel": "ort_bare", "ort": "ort_bare", "openvino": "openvino_bare"}


def write_config(folder: Path, name: str, num_classes: int, suppression: str) -> Path:
    """Write the settings of a detector."""
    from detloom.schemas.model.network import FixedShapeResizer
    from detloom.schemas.odapi.pipeline_config import format_pipeline_config
    from detloom.schemas.presets.presets import find_preset
    from detloom.schemas.presets.recipes import SUPPRESSION

    config = find_preset(MODELS[name][0]).config
    model: Any = replace(config.model, num_classes=num_classes)
    if name == "run":
        model = replace(model, image_resizer=FixedShapeResizer(height=288, width=416))
    if suppression == "soft":
        nms = replace(model.post_processing.batch_non_max_suppression, **SUPPRESSION)
        model = replace(model, post_processing=replace(model.post_processing, batch_non_max_suppression=nms))
    path = folder / "pipeline.config"
    path.write_text(format_pipeline_config(replace(config, model=model)), encoding="utf-8")
    return path


def export(config_path: str, weights: str, output: str) -> None:
    """Write SavedModel, model.onnx and the bare network as ONNX; `weights` is a checkpoint, a trained model or ""."""
    import tensorflow as tf

    from detloom.schemas.contracts.label_map import LabelMap
    from detloom.schemas.model.export_and_quantization import Export
    from detloom.schemas.odapi.pipeline_config import read_pipeline_config
    from detloom.trainer_module.detectors.families import build_detector
    from detloom.trainer_module.export.folded_batch_norm import fold_batch_norms
    from detloom.trainer_module.export.load_trained import load_trained
    from detloom.trainer_module.export.onnx_graph import convert_to_onnx
    from detloom.trainer_module.export.onnx_operations import HANDLERS
    from detloom.trainer_module.export.saved_model import export_saved_model
    from detloom.trainer_module.weights.restore import find_trained, restore

    config = read_pipeline_config(Path(config_path))
    detector = build_detector(config.model, LabelMap.from_names(f"class {i}" for i in range(config.model.num_classes)))
    if weights and Path(weights).is_dir():
        detector, config = load_trained(Path(weights))
    elif weights:
        train = replace(config.train, fine_tune_checkpoint=weights, fine_tune_checkpoint_type="full")
        restore(train, detector, find_trained(train, detector))
    else:
        random = np.random.default_rng(0)
        for variable in detector.network.trainable_variables:
            if "head_" in variable.path and "kernel" in variable.path:
                variable.assign(random.normal(0, np.prod(variable.shape[:-1]) ** -0.5, variable.shape))
    export_saved_model(detector, config, Path(output) / "model", Export(onnx=True))
    folded = fold_batch_norms(detector)
    network = tf.function(lambda images: folded.forward({"image": images}, training=False))
    spec = tf.TensorSpec([None, *detector.preprocessing.network_hw, 3])
    bare = convert_to_onnx(network.get_concrete_function(spec), "images", HANDLERS)
    (Path(output) / "bare.onnx").write_bytes(bare.SerializeToString())


def build_calls(runtime: str, images_path: str, output: str) -> dict[str, Callable[[int], Any]]:
    """Return functions by name that process a batch of the given size."""
    images = np.resize(np.load(images_path), (max(BATCH_SIZES), 480, 640, 3))
    if runtime == "tensorflow":
        import tensorflow as tf

        model = tf.saved_model.load(f"{output}/model")

        def call(batch_size: int) -> Any:  # `model` keeps the variables alive
            found = model.signatures["serving_default"](input_tensor=tf.constant(images[:batch_size]))
            return [value.numpy() for value in found.values()]

        return {"savedmodel": call}
    import onnx

    from detloom.trainer_module.inference.onnx_sessions import OnnxRuntimeSession, OpenVinoSession

    name, session = {"ort": ("ort", OnnxRuntimeSession), "openvino": ("openvino", OpenVinoSession)}[runtime]
    full = session(Path(output, "model/model.onnx").read_bytes())
    bare = session(Path(output, "bare.onnx").read_bytes())
    (spec,) = onnx.load(f"{output}/bare.onnx").graph.input
    shape = [each.dim_value for each in spec.type.tensor_type.shape.dim][1:]
    prepared = np.random.default_rng(0).normal(0, 1, (len(images), *shape)).astype(np.float32)
    return {
        name: lambda batch_size: full.run({"input_tensor": images[:batch_size]}),
        f"{name}_bare": lambda batch_size: bare.run({"images": prepared[:batch_size]}),
    }


def serve(arguments: list[str]) -> None:
    """Answer timing requests in a child process."""
    calls = build_calls(*arguments)
    for call in calls.values():
        for batch_size in BATCH_SIZES:
            call(batch_size)
    answer_requests(lambda name, batch_size: calls[name](int(batch_size)))


def find_weights(name: str, num_classes: int, trained: Path | None) -> str:
    reference = SHARED / "parity" / MODELS[name][1] / "checkpoint/ckpt-0"
    if num_classes == 90 and reference.with_suffix(".index").is_file():
        return str(reference)
    return str(trained) if trained and name == "run" else ""


def measure(name: str, num_classes: int, suppression: str, weights: str, num_rounds: int) -> dict[str, Any]:
    """Return milliseconds of a call by batch size and system, one value per round, and the load of the machine."""
    with tempfile.TemporaryDirectory() as work:
        config, images = write_config(Path(work), name, num_classes, suppression), f"{work}/images.npy"
        np.save(images, np.random.default_rng(0).integers(0, 256, (2, 48, 64, 3), np.uint8).repeat(10, 1).repeat(10, 2))
        subprocess.run([sys.executable, __file__, "--export", str(config), weights, work], check=True)
        child = [sys.executable, __file__, "--child"]
        processes = [(TimedProcess([*child, "tensorflow", images, work]), ["savedmodel"])]
        for runtime in ("ort", "openvino"):
            processes.append((TimedProcess([*child, runtime, images, work]), [f"{runtime}_bare", runtime]))
        rounds: dict[int, dict[str, list[float]]] = {batch_size: {} for batch_size in BATCH_SIZES}
        for _ in range(num_rounds):
            for (batch_size, times), (process, calls) in product(rounds.items(), processes):
                for call in calls:
                    seconds = process.seconds(f"{call} {batch_size}", BATCH_SIZES[batch_size])
                    times.setdefault(call, []).append(1000 * statistics.median(seconds))
        for process, _ in processes:
            process.close()
    return {"weights": weights or "random", "load": psutil.getloadavg()[0], "rounds": rounds}


def summarize(times: dict[str, list[float]]) -> dict[str, float]:
    """Return the median time of each system, and the medians of the rounds' ratios."""
    row = {system: statistics.median(values) for system, values in times.items()}
    for one, other in RATIOS.items():
        ratios = [a / b for a, b in zip(times[one], times[other], strict=True)]
        row[f"{one}_to_{other}"] = statistics.median(ratios)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--classes", nargs="+", type=int, default=[90, 1])
    parser.add_argument("--suppression", nargs="+", choices=["hard", "soft"], default=["hard", "soft"])
    parser.add_argument("--trained", type=Path, help="exported or pushed model for `run`, of any number of classes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--export", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.export:
        export(*args.export)
        return
    if args.child:
        serve(args.child)
        return
    results = {}
    for name, num_classes, suppression in product(args.models, args.classes, args.suppression):
        if (name, suppression) in (("centernet", "soft"), ("run", "hard")):
            continue  # CenterNet has no suppression; the other exists as lite0
        weights = find_weights(name, num_classes, args.trained)
        result = measure(name, num_classes, suppression, weights, args.rounds)
        summary = {batch_size: summarize(times) for batch_size, times in result["rounds"].items()}
        label = f"{name}, {num_classes} classes, {suppression}"
        results[label] = {**result, "summary": summary}
        for batch_size, row in summary.items():
            ratios = "  ".join(f"{key} {value:.2f}" for key, value in row.items() if "_to_" in key)
            shown = "  ".join(f"{key} {value / batch_size:.1f}" for key, value in row.items() if "_to_" not in key)
            print(f"{label}, batch {batch_size}: ms an image {shown}; {ratios}", flush=True)
    print(f"load of the machine: {max(result['load'] for result in results.values()):.1f} of {os.cpu_count()} cores")
    if args.output:
        settings = {"rounds": args.rounds, "calls": BATCH_SIZES, **describe_machine()}
        args.output.write_text(json.dumps({"settings": settings, "models": results}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
