"""Compare a training step in bfloat16 and float16 with one in float32; `conftest.py` starts this script.

TF_ENABLE_ONEDNN_OPTS=0 python precision_process.py CONFIG.json [FILE:CONTEXT]

The process needs no oneDNN: its bfloat16 operations exist on some CPUs only, and TensorFlow's own on all. CONTEXT is a
context manager in FILE; the detectors are built within it. Prints JSON, see `compare`. Differences of vectors are
relative: the norm of the difference over the norm of the float32 vector.
"""

import contextlib
import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import ml_dtypes
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from detloom.schemas.contracts.ground_truth import IMAGE, TRUE_HW
from detloom.schemas.model.config import Precision, TrainEvalConfig
from detloom.schemas.reading.typed_dict import from_json
from detloom.trainer_module.training.step import TrainSteps

TOO_LARGE = 2.0**100  # any loss times this overflows in float16
LOW_PRECISIONS: dict[Precision, npt.DTypeLike] = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def module_at(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


parts = module_at(Path(__file__).parents[1] / "training" / "training_parts.py")


@dataclass(frozen=True)
class Step:
    """The first step that changed the weights.

    Attributes:
        losses: the total, then each loss.
        changes: difference of each weight.
        num_overflows: steps before it in which the loss scale was too large.
    """

    losses: npt.NDArray[np.float64]
    changes: dict[str, npt.NDArray[np.float64]]
    num_overflows: int


def make_steps(config: TrainEvalConfig, precision: Precision, build: Callable[[], Any]) -> tuple[TrainSteps, Any]:
    """Make steps on one batch that repeats; without dropout, whose random numbers depend on the precision."""
    config = replace(config, train=replace(config.train, precision=precision))
    with build():
        steps, iterator = parts.make_steps(config, batches=batch_of(config))
    for layer in steps.detector.network.layers:
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0
    return steps, iterator


def batch_of(config: TrainEvalConfig) -> dict[str, npt.NDArray[Any]]:
    return {name: rows[:1] for name, rows in parts.make_batches(config).items()}


def values_of(steps: TrainSteps) -> dict[str, npt.NDArray[np.float64]]:
    return {each.path: each.numpy().astype(np.float64) for each in steps.detector.network.weights}


def run_until_applied(steps: TrainSteps, iterator: Any) -> Step:
    before = values_of(steps)
    for num_overflows in range(25):
        result = steps.run(iterator, 1)
        assert result.is_finite, result
        changes = {path: value - before[path] for path, value in values_of(steps).items()}
        if any(np.any(change) for change in changes.values()):
            losses = np.array([result.numbers[name] for name in ("loss", *steps.loss_names)])
            return Step(losses, changes, num_overflows)
    raise AssertionError("all steps overflowed")


def difference(step: Step, exact: Step, is_wanted: Callable[[str], bool]) -> float:
    paths = [path for path in exact.changes if is_wanted(path)]
    squares = [np.sum(np.square(step.changes[path] - exact.changes[path])) for path in paths]
    norms = [np.sum(np.square(exact.changes[path])) for path in paths]
    return float(np.sqrt(np.sum(squares) / max(np.sum(norms), 1e-30)))


def is_gradient(path: str) -> bool:
    return "/moving_" not in path  # the statistics of batch norm


def is_of_heads(path: str) -> bool:
    return is_gradient(path) and path.startswith("head")


def types_of(steps: TrainSteps, config: TrainEvalConfig) -> dict[str, list[str]]:
    """Return the types of floating-point numbers that must not depend on the precision."""
    detector = steps.detector
    batch = {name: tf.constant(rows[0]) for name, rows in batch_of(config).items()}
    prepared = detector.preprocessing.normalize_padded(batch[IMAGE], batch[TRUE_HW])
    outputs = detector.forward({**batch, IMAGE: prepared}, training=True)
    assert steps.averaged_weights is not None
    tensors = {
        "weights": detector.network.weights,
        "slots": [each for each in steps.optimizer.variables if "iteration" not in each.path],
        "averages": steps.averaged_weights.averages,
        "outputs": [value for name, value in outputs.items() if not name.startswith("num_")],
        "losses": list(detector.losses(outputs, batch).values()),
        "detections": list(detector.detect(prepared, batch[TRUE_HW]).values()),
    }
    return {name: sorted({tf.as_dtype(each.dtype).name for each in values}) for name, values in tensors.items()}


def overflow(steps: TrainSteps, iterator: Any) -> dict[str, Any]:
    """Run a step with a loss scale that is too large, then restore the scale."""
    assert steps.loss_scale is not None
    scale, before = steps.loss_scale.factor.numpy(), values_of(steps)
    steps.loss_scale.factor.assign(TOO_LARGE)
    result = steps.run(iterator, 1)
    scale_ratio = float(steps.loss_scale.factor.numpy()) / TOO_LARGE
    steps.loss_scale.factor.assign(scale)
    return {
        "is_finite": result.is_finite,
        "has_changed_weights": any(np.any(value != before[path]) for path, value in values_of(steps).items()),
        "scale_ratio": scale_ratio,
    }


def compare(config: TrainEvalConfig, build: Callable[[], Any]) -> dict[str, dict[str, Any]]:
    """Return by precision:

    losses: largest difference of a loss, over the total loss of float32
    head_gradients: difference of the gradients of the heads; `gradients`: of all
    rounded_gradients: difference of the gradients of a float32 step with weights rounded to the precision
    types, overflow: see `types_of` and `overflow`; `num_overflows`: see `Step`
    """
    exact = run_until_applied(*make_steps(config, "float32", build))
    found: dict[str, dict[str, Any]] = {}
    for precision, dtype in LOW_PRECISIONS.items():
        rounded_steps, iterator = make_steps(config, "float32", build)
        for variable in rounded_steps.detector.network.trainable_variables:
            variable.assign(variable.numpy().astype(dtype).astype(np.float32))
        rounded = run_until_applied(rounded_steps, iterator)
        steps, iterator = make_steps(config, precision, build)
        of_overflow = overflow(steps, iterator) if steps.loss_scale is not None else None
        step = run_until_applied(steps, iterator)
        found[precision] = {
            "losses": float(np.max(np.abs(step.losses - exact.losses)) / exact.losses[0]),
            "head_gradients": difference(step, exact, is_of_heads),
            "gradients": difference(step, exact, is_gradient),
            "rounded_gradients": difference(rounded, exact, is_gradient),
            "num_overflows": step.num_overflows,
            "types": types_of(steps, config),
            "overflow": of_overflow,
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
