"""Compare losses and gradients in bfloat16 and float16 with those in float32; `conftest.py` starts this script.

TF_ENABLE_ONEDNN_OPTS=0 python precision_process.py CONFIG.json [FILE:CONTEXT]

The process needs no oneDNN: its bfloat16 operations exist on some CPUs only, and TensorFlow's own on all. CONTEXT is a
context manager in FILE; the detectors are built within it. Prints JSON, see `compare`.
"""

import contextlib
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from detloom.schemas.contracts.ground_truth import IMAGE, TRUE_HW
from detloom.schemas.model.config import Precision, TrainEvalConfig
from detloom.schemas.reading.typed_dict import from_json
from detloom.trainer_module.detectors.families import build_detector
from detloom.trainer_module.runtime.numerics import network_precision

LOSS_SCALES: dict[Precision, float] = {"float32": 1.0, "bfloat16": 1.0, "float16": 2.0**8}


def module_at(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


parts = module_at(Path(__file__).parents[2] / "support" / "training_parts.py")


def compute(config: TrainEvalConfig, precision: Precision, build: Callable[[], Any]) -> dict[str, Any]:
    """Compute without dropout, whose random numbers depend on the precision."""
    keras.utils.set_random_seed(0)
    with build(), network_precision(precision):
        detector = build_detector(config.model, parts.LABEL_MAP)
    for layer in detector.network.layers:
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0
    batch = {name: tf.constant(rows[0]) for name, rows in parts.make_batches(config).items()}
    prepared = detector.preprocessing.normalize_padded(batch[IMAGE], batch[TRUE_HW])
    variables, scale = detector.network.trainable_variables, LOSS_SCALES[precision]
    with tf.GradientTape() as tape:
        outputs = detector.forward({**batch, IMAGE: prepared}, training=True)
        losses = detector.losses(outputs, batch)
        scaled = scale * tf.add_n([*losses.values(), *detector.network.losses])
    slopes = tape.gradient(scaled, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    pairs = zip(variables, slopes, strict=True)
    is_float = [value for name, value in outputs.items() if not name.startswith("num_")]
    tensors = [*detector.network.weights, *is_float, *losses.values()]
    tensors += detector.detect(prepared, batch[TRUE_HW]).values()
    return {
        "losses": np.array([float(scaled / scale), *map(float, losses.values())]),
        "gradients": {each.path: np.asarray(slope, np.float64) / scale for each, slope in pairs},
        "types": sorted({tf.as_dtype(each.dtype).name for each in tensors}),
    }


def compare(config: TrainEvalConfig, build: Callable[[], Any]) -> dict[str, dict[str, Any]]:
    """Return by precision:

    losses: largest difference of a loss, over the total loss of float32
    head_gradients: norm of the difference of the gradients of the heads, over the norm of those of float32
    is_finite: whether all gradients are
    types: types of weights, outputs, losses and detections
    """
    exact = compute(config, "float32", build)
    heads = [path for path in exact["gradients"] if path.startswith("head")]
    found: dict[str, dict[str, Any]] = {}
    for precision in ("bfloat16", "float16"):
        low = compute(config, precision, build)
        gradients = low["gradients"]
        squares = [np.sum(np.square(gradients[path] - exact["gradients"][path])) for path in heads]
        norms = [np.sum(np.square(exact["gradients"][path])) for path in heads]
        found[precision] = {
            "losses": float(np.max(np.abs(low["losses"] - exact["losses"])) / exact["losses"][0]),
            "head_gradients": float(np.sqrt(np.sum(squares) / np.sum(norms))),
            "is_finite": all(bool(np.isfinite(gradient).all()) for gradient in gradients.values()),
            "types": low["types"],
        }
    return found


def main() -> None:
    tf.config.run_functions_eagerly(True)  # compilation would take most of the time
    config = from_json(TrainEvalConfig, Path(sys.argv[1]).read_text(encoding="utf-8"))
    build: Callable[[], Any] = contextlib.nullcontext
    if len(sys.argv) > 2:
        file, _, name = sys.argv[2].rpartition(":")
        build = getattr(module_at(Path(file)), name)
    print(json.dumps(compare(config, build)))


if __name__ == "__main__":
    main()
