"""Weights and images generated from names alone, so that reference and test use the same ones without storing them.

Runs in Python 3.9 with NumPy 1.23 (the peer) and in ours: plain NumPy, and only `RandomState.random_sample`, whose
stream never changes.
"""

from __future__ import annotations  # Python 3.9

import math
import zlib

import numpy as np

CLASS_BIAS = -4.6  # a probability of 0.01, as after training: focal losses and top scores have their usual range
SCALE_STEPS = 16
_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


def variable_name(key: str) -> str:
    """Return the last part of a checkpoint key's object path: `kernel`, `gamma`, ..."""
    return key[: -len(_SUFFIX)].rsplit("/", 1)[-1] if key.endswith(_SUFFIX) else key.rsplit("/", 1)[-1]


def batch_norm_key(key: str) -> str:
    """Return the part of a key that the variables of one batch norm share."""
    return key[: -len(_SUFFIX)].rsplit("/", 1)[0]


def lively_value(key: str, shape: tuple[int, ...], input_scales: dict[str, int] | None = None) -> np.ndarray:
    """Return float32 values for the variable with the checkpoint key `key`.

    `input_scales` gives, by `batch_norm_key`, the size of a batch norm's inputs (root mean square, a power of two, in
    steps of `SCALE_STEPS` per octave); with it, inference mode neither grows nor vanishes in a deep network.
    """
    uniform = np.random.RandomState(zlib.crc32(key.encode())).random_sample(shape)
    scale = 2.0 ** ((input_scales or {}).get(batch_norm_key(key), 0) / SCALE_STEPS)
    name = variable_name(key)
    if name == "depthwise_kernel":
        value = (2 * uniform - 1) * math.sqrt(6 / (shape[0] * shape[1]))
    elif name in ("kernel", "pointwise_kernel"):
        # He et al. 2015; the outputs of heads pass no ReLU.
        gain = 3 if "prediction_head" in key else 6
        value = (2 * uniform - 1) * math.sqrt(gain / max(1, math.prod(shape[:-1])))
    elif name == "bias":
        is_of_classes = ("class" in key or "object_center" in key) and "box_classifier_features" not in key
        value = 0.2 * (uniform - 0.5) + (CLASS_BIAS if is_of_classes else 0)
    elif name == "moving_mean":
        value = scale * (uniform - 0.5)
    elif name == "moving_variance":
        value = 1.2 * scale * scale * (0.5 + uniform)  # 1.2: the contribution of gamma and the mean to the variance
    elif name == "beta":
        value = 0.5 * (uniform - 0.5)
    else:  # gamma, bifpn_combine_weights
        value = 0.5 + uniform
    return np.asarray(value, np.float32)


def automl_value(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return float32 values for a variable of google/automl's EfficientDet.

    They keep activations near 1, so that ReLU6 rarely cuts them off, and rounding is not enlarged.
    """
    signed = 2 * np.random.RandomState(zlib.crc32(name.encode())).random_sample(shape) - 1
    last = name.rsplit("/", 1)[-1]
    if last in ("gamma", "moving_variance"):
        value = 1 + 0.3 * signed
    elif last in ("beta", "bias"):
        value = 0.35 * signed
    elif last == "moving_mean":
        value = 0.2 * signed
    elif last == "depthwise_kernel":
        value = 0.8 * signed * math.sqrt(6 / (shape[0] * shape[1]))
    else:  # a kernel with a variance of 1 / fan-in
        value = signed * math.sqrt(3 / max(1, math.prod(shape[:-1])))
    return np.asarray(value, np.float32)


def lively_images(num_images: int, height: int, width: int) -> np.ndarray:
    """Return uint8 [B, H, W, 3] with waves, rectangles and noise, so that resizing, borders and textures all matter."""
    random = np.random.RandomState(num_images * 1_000_003 + height * 1_009 + width)
    rows, columns = np.mgrid[0:height, 0:width]
    images = np.empty((num_images, height, width, 3), np.uint8)
    for image in images:
        for channel in range(3):
            cycles_y, cycles_x, phase = random.random_sample(3) * (6, 6, 2 * math.pi)
            waves = np.sin(2 * math.pi * (cycles_y * rows / height + cycles_x * columns / width) + phase)
            image[..., channel] = np.round(110 + 80 * waves + 60 * (random.random_sample((height, width)) - 0.5))
        for _ in range(6):
            top, left, rows_share, columns_share, *color = random.random_sample(7)
            below, right = int((top + 0.4 * rows_share) * height) + 2, int((left + 0.4 * columns_share) * width) + 2
            image[int(top * height) : below, int(left * width) : right] = np.asarray(color) * 255
    return images
