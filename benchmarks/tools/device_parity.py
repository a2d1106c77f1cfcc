"""Comparison of a training step and of detections on a device with those of the CPU in float32."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

SMALLEST_LOSS_SHARE = 1e-3  # a loss that is a smaller share of the total is compared with this share of it
_GRADIENT_PREFIX = "gradient_norm/"


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Largest allowed differences.

    Attributes:
        losses: of any loss, relative to the loss.
        gradients: of the norm of the gradient of any variable, relative to the norm of the whole gradient.
        detections: of any coordinate or score of two detections that count as equal, absolute.
        min_matched: smallest allowed share of detections that have an equal one on the other side.
    """

    losses: float
    gradients: float
    detections: float
    min_matched: float


# By arithmetic of convolutions and matrix products; not yet measured on an accelerator. They were chosen after runs of
# the default presets on a CPU with the operands of these operations rounded: to float32 without its last two bits, as
# another order of sums would change it, to TensorFloat-32, and to bfloat16. The largest differences of SSD,
# EfficientDet and CenterNet were 0.00004, 0.007 and 0.019 (losses) and 0.005, 0.075 and 0.055 (gradients). All, 94 %
# and 74 % of the detections were equal within 0.001, 0.05 and 0.1. Networks in float16 and bfloat16 also round their
# activations.
BOUNDS = {
    "float32": Bounds(losses=5e-4, gradients=2e-2, detections=1e-3, min_matched=0.98),
    "TensorFloat-32": Bounds(losses=3e-2, gradients=2e-1, detections=5e-2, min_matched=0.8),
    "float16": Bounds(losses=3e-2, gradients=2e-1, detections=5e-2, min_matched=0.8),
    "bfloat16": Bounds(losses=1e-1, gradients=3e-1, detections=1e-1, min_matched=0.5),
}
# With proposals, rounding changes the choice of proposals and samples. Faster R-CNN ResNet-50 FPN, with two images,
# differed by 0.14, 0.02 and 0.19 (losses) and 0.06, 0.10 and 0.18 (gradients), with 96 %, 55 % and 47 % equal.
BOUNDS_WITH_PROPOSALS = {
    "float32": Bounds(losses=3e-1, gradients=2e-1, detections=1e-3, min_matched=0.9),
    "TensorFloat-32": Bounds(losses=3e-1, gradients=2e-1, detections=5e-2, min_matched=0.4),
    "float16": Bounds(losses=3e-1, gradients=2e-1, detections=5e-2, min_matched=0.4),
    "bfloat16": Bounds(losses=4e-1, gradients=4e-1, detections=1e-1, min_matched=0.25),
}


def arithmetic_of(kind: str, precision: str, *, has_tensor_float: bool) -> str:
    """Return the key of `BOUNDS`.

    Args:
        kind: "CPU", "GPU" or "TPU". TPUs multiply float32 values in bfloat16
            (https://cloud.google.com/tpu/docs/bfloat16).
    """
    if precision != "float32":
        return precision
    if kind == "TPU":
        return "bfloat16"
    return "TensorFloat-32" if kind == "GPU" and has_tensor_float else "float32"


def compare_numbers(reference: dict[str, float], found: dict[str, float]) -> dict[str, float]:
    """Return the largest relative difference of losses and of gradient norms; infinity for a value that is no number.

    Args:
        reference, found: `StepsResult.numbers` with the gradient norm of each variable.
    """
    losses = [name for name in reference if name == "loss" or name.endswith("_loss")]
    norms = [name for name in reference if name == "gradient_norm" or name.startswith(_GRADIENT_PREFIX)]
    smallest = SMALLEST_LOSS_SHARE * abs(reference["loss"])
    return {
        "losses": _largest(abs(found[name] - reference[name]) / max(abs(reference[name]), smallest) for name in losses),
        "gradients": _largest(abs(found[name] - reference[name]) / reference["gradient_norm"] for name in norms),
    }


def _largest(values: Any) -> float:
    largest = float(np.max(list(values)))
    return largest if math.isfinite(largest) else math.inf
